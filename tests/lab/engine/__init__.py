"""The lab engine: behaves like vLLM's V1 engine on a paged KV pool, without a model.

One scheduler core serves the HTTP server, the simulation in virtual time and the property tests. Standard
library only, so that its container image is a Python interpreter and this folder.
"""
