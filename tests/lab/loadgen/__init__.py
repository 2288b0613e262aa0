"""The load generator: clients of an OpenAI-compatible server that notice what a person would notice.

Closed loop or Poisson arrivals, streaming, over fresh or kept connections. Bounded in requests and time, and
reproducible by its seed.
"""
