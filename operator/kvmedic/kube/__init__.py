"""The Kubernetes API: one thin client with time-outs and an exception tree of its own."""
