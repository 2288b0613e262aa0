"""Whether an engine computes a prompt in one step, as far as its command line tells."""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.core.edit import containers_of
from kvmedic.core.engine import Engine, EngineProfile, Knob
from kvmedic.manifests.flags import parsed_of
from kvmedic.manifests.invocation import version_of
from kvmedic.manifests.refusal import Refusal


def may_chunk(template: Mapping[str, object], container: str, profile: EngineProfile) -> bool:
    """Return whether an engine may compute a long prompt in several steps.

    It does not only where its command line says so and its release is not known to overrule that. What a
    configuration file says does not count.

    Args:
        template: the pod template, or one like it.
        container: the engine's container.
        profile: of the engine.
    """
    flag = profile.flag(Knob.CHUNKED_PREFILL)
    found = [each for each in containers_of(template) if each.get("name") == container]
    if flag is None or len(found) != 1:
        return True
    engine = Engine(profile, version_of(found[0], profile))
    parsed = parsed_of(found[0], engine)
    given = None if isinstance(parsed, Refusal) else parsed.last(flag.dest)
    return given is None or given.value is not False or engine.keeps_on(flag) is True
