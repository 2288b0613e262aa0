"""A trial pod that computes each prompt in one step: only then memory shows how it grows with the prompt.

Computed in chunks, the scores of a long prompt are those of one chunk against all that came before, and a
square looks like a line. The target keeps its setting; only the trial pod has another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvmedic.core.bundle import BundleEdit, BundlePart
from kvmedic.core.edit import container_at
from kvmedic.core.engine import Flag, Knob, OptionName
from kvmedic.core.reasons import Reason
from kvmedic.manifests.configuration import Configuration
from kvmedic.manifests.flags import AlreadySet, edit, setting_of
from kvmedic.manifests.prefills import may_chunk
from kvmedic.manifests.refusal import Refusal
from kvmedic.manifests.removal import taken_off
from kvmedic.runbooks.planning import Fault, Workload

ROOM = 64
"""Tokens that a request may have beside the longest prompt."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one knob should be on the trial pod."""

    flag: Flag
    value: int | bool | None
    """None: not given."""


def whole_prompts(workload: Workload, longest: int) -> BundleEdit | Fault | None:
    """Return what has to differ on a trial pod that computes prompts whole, None where nothing has to.

    Args:
        workload: the target's engine.
        longest: tokens of the longest prompt.
    """
    template, parts = workload.template, list[BundlePart]()
    for wish in _wishes(workload, longest):
        if why := _overruled(workload, wish.flag):
            return _impossible(why)
        made = _made(workload, template, wish)
        if isinstance(made, Refusal):
            return _impossible(f"prompts cannot be computed whole: {made.message}")
        for part in made:
            template = part.apply(template)
        parts += made
    return BundleEdit(tuple(parts)) if parts else None


def _overruled(workload: Workload, flag: Flag) -> str:
    """Return why an engine may not heed what is given; empty where it does."""
    name, keeps = workload.engine.profile.name, workload.engine.keeps_on(flag)
    if keeps is None:
        return (
            f"some releases of {name} compute prompts in chunks whatever {flag.name} says: name the engine's "
            "version, in its image's tag (IMAGE:vVERSION@DIGEST)"
        )
    if keeps:
        return (
            f"{name} {workload.engine.version} computes prompts in chunks whatever {flag.name} says: try it "
            "on a pod template of your own with a newer one"
        )
    return ""


def _impossible(message: str) -> Fault:
    return Fault(Reason.TRIAL_IMPOSSIBLE, message)


def _wishes(workload: Workload, longest: int) -> Iterator[_Wish]:
    """Yield what should be set, in this order.

    A step must hold the longest request there may be, so that one is cut to what is asked; where nobody
    knows how long it is, the engine sizes its steps by itself.
    """
    profile, limit = workload.engine.profile, _whole(workload, Knob.MAX_MODEL_LEN)
    length, chunks, steps = (
        profile.flag(knob) for knob in (Knob.MAX_MODEL_LEN, Knob.CHUNKED_PREFILL, Knob.MAX_NUM_BATCHED_TOKENS)
    )
    if length is not None and limit is not None and limit > longest + ROOM:
        limit = longest + ROOM
        yield _Wish(length, limit)
    if chunks is not None and may_chunk(workload.template, str(workload.container.get("name")), profile):
        yield _Wish(chunks, value=False)
    budget = _whole(workload, Knob.MAX_NUM_BATCHED_TOKENS)
    if steps is None or budget is None or (limit is not None and budget >= limit):
        return
    yield _Wish(steps, None if limit is None else max(limit, _sequences(workload)))


def _sequences(workload: Workload) -> int:
    """Return the most sequences that a step may have; it may never have fewer tokens than these."""
    flag = workload.engine.profile.flag(Knob.MAX_NUM_SEQS)
    default = flag.most if flag is not None else None
    return _whole(workload, Knob.MAX_NUM_SEQS) or default or 0


def _whole(workload: Workload, knob: Knob) -> int | None:
    given = workload.given(knob)
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None


def _made(
    workload: Workload, template: Mapping[str, object], wish: _Wish
) -> tuple[BundlePart, ...] | Refusal:
    """Return the edits of a pod template that fulfil a wish; none where it is so already."""
    index, engine = workload.container_index, workload.engine
    container = container_at(template, index) or {}
    if wish.value is None:
        return taken_off(container, index, OptionName(wish.flag.name, wish.flag.dest), engine)
    wanted = setting_of(wish.flag, wish.value, engine)
    if isinstance(wanted, Refusal):
        return wanted
    file = workload.file
    read = file.read.parsed if isinstance(file, Configuration) else None
    change = edit(container, index, wanted, engine, read)
    if isinstance(change, Refusal):
        return change
    return () if isinstance(change, AlreadySet) else (change,)
