"""The vocabulary of each engine: how it is recognised, what may be turned on it, how that is spelled.

Data only. `ENGINES` lists every engine; a new one is a file of its own and an entry here.
"""

from kvmedic.engines.vllm import VLLM

ENGINES = (VLLM,)
"""Every engine that is known."""
