"""A pod template that somebody edited in the middle of a run, without what the run had changed of it.

ReplicaSets keep the run's own templates, before and after. So this is a merge of three: what turned the one
after into the edited one is done to the one before. Where both changed one place, theirs counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from kvmedic.model.config_edits import TemplateSwap
from kvmedic.model.edits import EditState
from kvmedic.model.fleet import Fleet, own_template, template_hash
from kvmedic.model.plan import BundleStep, Step

Template = Mapping[str, object]

_WORDS = re.compile(r"\s+|\S+")
_NAMES = ("name", "mountPath", "key", "containerPort")
"""Fields that distinguish the entries of a pod template's lists, the first that all of them have."""


class Three(NamedTuple):
    """One place of three pod templates; None where it is not there."""

    base: object
    """After the run's change."""
    theirs: object
    """As somebody edited it."""
    ours: object
    """Before the run's change."""


def without_our_change(
    step: Step, fleet: Fleet, template: Template, kept: Mapping[str, Template]
) -> Template | None:
    """Return an edited pod template with a step's change taken out of it.

    None where nothing of the change is in it, or no ReplicaSet keeps what would show it. None too where
    the template is the very one after the step (`rollout undo`: somebody wants it), and where they set a part
    of a bundle: half of one is a setting that nobody ever ran, so it is theirs as a whole.
    """
    revisions = {rs.revision: own_template(kept[rs.name]) for rs in fleet.replica_sets if rs.name in kept}
    both = _templates_of(step, revisions)
    if both is None or fleet.revision == step.after_template:
        return None
    before, after = both
    merge = _Merge()
    merged = merge.merge(Three(after, template, before))
    if not isinstance(merged, Mapping) or template_hash(merged) == template_hash(template):
        return None
    return None if merge.overlaps and isinstance(step, BundleStep) else merged


def _templates_of(step: Step, revisions: Mapping[str, Template]) -> tuple[Template, Template] | None:
    """Return the templates before and after a step; one that no ReplicaSet keeps follows from the other."""
    change = step.template_change
    before, after = revisions.get(step.before_template), revisions.get(step.after_template)
    if before is not None and after is not None:
        return before, after
    if change is None or isinstance(change, TemplateSwap):
        return None
    if after is not None and change.state(after) is EditState.AFTER:
        return change.inverse().apply(after), after
    if before is not None and change.state(before) is EditState.BEFORE:
        return before, change.apply(before)
    return None


@dataclass(slots=True)
class _Merge:
    """One merge of three templates."""

    overlaps: bool = False
    """Somebody changed a place that the run had changed too."""

    def merge(self, three: Three) -> object:
        base, theirs, ours = three
        if theirs == base:
            return ours
        if ours == base:
            return theirs
        given = [each for each in three if each is not None]
        if all(isinstance(each, Mapping) for each in given):
            return self._mappings(*(_as_mapping(each) for each in three)) or theirs
        if all(isinstance(each, list | tuple) for each in given):
            return self._lists(*(_list(each) for each in three)) or theirs
        if all(isinstance(each, str) for each in three):
            return self._text(*(str(each) for each in three))
        self.overlaps = True
        return theirs

    def _mappings(
        self, base: Mapping[str, object], theirs: Mapping[str, object], ours: Mapping[str, object]
    ) -> dict[str, object]:
        keys = _keys(theirs, ours)
        merged = {key: self.merge(Three(base.get(key), theirs.get(key), ours.get(key))) for key in keys}
        return {key: value for key, value in merged.items() if value is not None}

    def _lists(self, *lists: list[object]) -> list[object]:
        """Return lists merged: by their entries' names, by place where none came or went, or as sequences."""
        if (name := _naming_field(*lists)) is not None:
            named = ({str(_as_mapping(each)[name]): each for each in entries} for entries in lists)
            return list(self._mappings(*named).values())
        alike = len({len(entries) for entries in lists}) == 1
        if alike and any(isinstance(each, Mapping | list) for each in lists[0]):
            return [self.merge(Three(*places)) for places in zip(*lists, strict=True)]
        texts = (tuple(json.dumps(each, sort_keys=True) for each in entries) for entries in lists)
        return [json.loads(text) for text in self._sequence(*texts)]

    def _sequence(self, base: Sequence[str], theirs: Sequence[str], ours: Sequence[str]) -> list[str]:
        """Return theirs with each difference between base and ours made in it, whose place is still there."""
        blocks = SequenceMatcher(None, base, theirs, autojunk=False).get_matching_blocks()
        places = {one.a + i: one.b + i for one in blocks for i in range(one.size)}
        merged = list(theirs)
        for start, end, desired in reversed(list(_differences(base, ours))):
            found = [places.get(index) for index in range(start, end)]
            if found and found[0] is not None and found == list(range(found[0], found[0] + len(found))):
                merged[found[0] : found[0] + len(found)] = desired
                continue
            first, last = _gap(start, end, places, len(base), len(theirs))
            seen = theirs[first:last]
            if start == end and first is not None and not _contains(seen, desired):
                merged[first:first] = desired
            elif len(seen) == len(desired) == end - start and None not in (first, last):
                words = zip(base[start:end], seen, desired, strict=True)
                merged[first:last] = [self._text(*each) for each in words]
            else:
                self.overlaps = True
        return merged

    def _text(self, base: str, theirs: str, ours: str) -> str:
        words = [_WORDS.findall(each) for each in (base, theirs, ours)]
        if len(words[0]) > 1:
            return "".join(self._sequence(*words))
        self.overlaps = True
        return theirs


def _gap(
    start: int, end: int, places: Mapping[int, int], of_base: int, of_theirs: int
) -> tuple[int | None, int | None]:
    first = places.get(start - 1, -1) + 1 if start - 1 in places or start == 0 else None
    last = places.get(end, of_theirs) if end in places or end == of_base else None
    return first, last


def _keys(theirs: Mapping[str, object], ours: Mapping[str, object]) -> list[str]:
    """Return all keys in their order; one that is only in ours behind the one that it follows there.

    A variable may refer to those before it.
    """
    keys, before = list(theirs), ""
    for key in ours:
        if key not in theirs:
            keys.insert(keys.index(before) + 1 if before else 0, key)
        before = key
    return keys


def _naming_field(*lists: Sequence[object]) -> str | None:
    for name in _NAMES:
        names = [[_as_mapping(each).get(name) for each in entries] for entries in lists]
        if all(None not in found and len(set(map(str, found))) == len(found) for found in names):
            return name
    return None


def _differences(base: Sequence[str], ours: Sequence[str]) -> Iterator[tuple[int, int, Sequence[str]]]:
    for tag, start, end, first, last in SequenceMatcher(None, base, ours, autojunk=False).get_opcodes():
        if tag != "equal":
            yield start, end, ours[first:last]


def _contains(sequence: Sequence[str], part: Sequence[str]) -> bool:
    return any(list(sequence[i : i + len(part)]) == list(part) for i in range(len(sequence)))


def _as_mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
