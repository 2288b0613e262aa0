"""Which flags and variables a spec may name as the settings of a method of compression.

Who may write a spec need not be somebody who may write a workload: a spec gives an engine nothing but
what known methods are configured by, and what an administrator lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvmedic.engines.engine_log import MODELS_OWN
from kvmedic.engines.kv_methods import METHODS
from kvmedic.model.compression import OFF_WORDS, PLUGINS, BundleSetting, method_names
from kvmedic.model.redaction import names_secret
from kvmedic.model.spec import CompressionPolicy

NEVER = re.compile(
    rf"LD_\w+|DYLD_\w+|PYTHON\w+|PATH|HOME|BASH_ENV|ENV|IFS|{PLUGINS}|\w*_(?:PROXY|proxy)|HF_ENDPOINT|\w+_ENDPOINT"
)
"""Variables by which another program, another model or another peer comes into the engine's container; an
administrator's pattern does not reach them."""


@dataclass(frozen=True, slots=True)
class AllowedSettings:
    """What an administrator allows beside what known methods name."""

    flags: tuple[str, ...] = ()
    """With their dashes."""
    variables: tuple[str, ...] = ()
    """Names; one that ends with `_*` is the beginning of names."""

    def refusals(self, policy: CompressionPolicy) -> tuple[str, ...]:
        """Return what a spec names that it may not, one sentence each with the field and the fix."""
        replacement = policy.replacement.settings if policy.replacement else ()
        return (
            *self._refusals("spec.compression.settings", policy.settings),
            *self._refusals("spec.compression.replacement.settings", replacement),
        )

    def _refusals(self, path: str, settings: Sequence[BundleSetting]) -> Iterator[str]:
        for at, setting in enumerate(settings):
            field, name = ("env", setting.env) if setting.env else ("flag", setting.flag)
            if self._allows(setting):
                continue
            where = "compression.variables" if setting.env else "compression.flags"
            yield (
                f"{path}[{at}].{field}: {name} is no setting of a known method: remove it, or have an "
                f"administrator add it to {where} of the operator's configuration"
            )

    def _allows(self, setting: BundleSetting) -> bool:
        if setting.env:
            patterns = (pattern for method in METHODS for pattern in method_names(method))
            is_known = any(re.fullmatch(pattern, setting.env) for pattern in patterns)
            return is_known or self._is_listed(setting.env)
        flag = spell_flag(setting.flag)
        return flag in _FLAGS or flag in {spell_flag(each) for each in self.flags}

    def _is_listed(self, name: str) -> bool:
        if name in self.variables:
            return not names_secret(name)
        starts = tuple(each.removesuffix("*") for each in self.variables if each.endswith("_*"))
        return name.startswith(starts) and not (NEVER.fullmatch(name) or names_secret(name))


def spell_flag(flag: str) -> str:
    """Return a flag as the engine spells it."""
    return "--" + flag.removeprefix("--").replace("_", "-")


def is_own_value(name: str, value: str) -> bool:
    """Return whether a variable's or flag's value is, by a method's description, the one without it."""
    if name == "--kv-cache-dtype" and value == MODELS_OWN:
        return True
    own = [each for method in METHODS for each in method.settings if name in (each.env, each.flag)]
    switches = {method.switch for method in METHODS if method.switch}
    return any(each.off == value for each in own) or (name in switches and value.lower() in OFF_WORDS)


_FLAGS = frozenset(
    {
        *(spell_flag(each.flag) for method in METHODS for each in method.settings if each.flag),
        "--enable-prefix-caching",
        "--kv-cache-dtype-skip-layers",
    }
)
"""Flags by which known methods are configured."""
