"""The lab: a real cluster, real Prometheus, an engine that behaves like vLLM, and load; test code only."""
