"""The vocabulary of each engine: how it is recognised, what may be turned on it, how that is spelled.

Data only. `ENGINES` lists every engine; a new one is a file of its own and an entry here.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from kvmedic.engines.engine_log import StartForms
from kvmedic.engines.vllm import VLLM
from kvmedic.engines.vllm_signals import VLLM_REFUSALS, VLLM_SIGNALS, VLLM_START
from kvmedic.model.evidence import SignalTable

ENGINES = (VLLM,)
"""Every engine that is known."""

SIGNALS: Mapping[str, SignalTable] = MappingProxyType({VLLM.name: VLLM_SIGNALS})
"""What each of them exports, by its name."""

STARTS: Mapping[str, StartForms] = MappingProxyType({VLLM.name: VLLM_START})
"""What each of them logs when it starts, by its name."""

REFUSALS: Mapping[str, tuple[re.Pattern[str], ...]] = MappingProxyType({VLLM.name: VLLM_REFUSALS})
"""How each of them says that a type of the KV cache is not supported where it runs, by its name."""
