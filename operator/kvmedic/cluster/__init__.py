"""A fleet on Kubernetes: what is read of it, and every effect on it."""
