"""kvmedic heals vLLM fleets that thrash on KV cache."""

__version__ = "0.1.0"
