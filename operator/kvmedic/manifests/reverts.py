"""What to give to the owner of a pod template so that a whole revision is taken back: a patch or a command.

Nothing is sent anywhere. Of the two templates only what the KV cache depends on is shown: the image, and
tokens of the command line that belong to options of interest. Where the revision changed more of the
command line than these, the change is told in words, as the rest may hold secrets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from kvmedic.core.edit import COMMAND_LINE, container_at
from kvmedic.core.owner import OwnerKind, TemplateOwner
from kvmedic.core.revisions import Difference, Revision
from kvmedic.manifests.proposals import Proposal, kustomized, make_proposal
from kvmedic.manifests.revisions import IMAGE

Operation = dict[str, object]

_SOURCES: Mapping[OwnerKind, str] = {
    OwnerKind.ARGO_CD: (
        "revert the commit behind it in the source of the application, then `argocd app sync {name}`"
    ),
    OwnerKind.FLUX_KUSTOMIZATION: (
        "revert the commit behind it, then `flux reconcile kustomization {name}{where} --with-source`"
    ),
    OwnerKind.FLUX_HELM: (
        "revert the commit behind it in the HelmRelease {name}, or put this under its "
        "spec.postRenderers[].kustomize"
    ),
    OwnerKind.APPLIER: "revert the commit behind it in what is applied",
}
"""Owners that apply what a repository holds."""
_RELEASES = frozenset({OwnerKind.HELM, OwnerKind.PRODUCTION_STACK})


@dataclass(frozen=True, slots=True)
class Reverted:
    """A revision that is to be taken back."""

    kind: str
    namespace: str
    name: str
    leaving: Revision
    wanted: Revision
    differences: tuple[Difference, ...]
    """What the revision changed of interest."""
    operations: tuple[Operation, ...] | None
    """The JSON patch of the workload; None where it would have to show more than what is of interest."""

    def words(self) -> str:
        """Return the revert as one sentence."""
        back = ", ".join(Difference(one.what, one.after, one.before).line() for one in self.differences)
        return f"{self.kind}/{self.name}, revision {self.leaving.number} back to {self.wanted.number}: {back}"


def revert_for(owner: TemplateOwner, reverted: Reverted) -> Proposal:
    """Return what to give to an owner so that a revision is taken back."""
    where = f" --namespace {shlex.quote(owner.namespace)}" if owner.namespace else ""
    name = shlex.quote(owner.name)
    if owner.kind in _RELEASES:
        number = reverted.leaving.number
        told = f"roll the release back to the one before, where its newest brought revision {number}"
        return make_proposal(owner, told, f"helm rollback {name}{where}\n({reverted.words()})")
    how = _SOURCES.get(owner.kind)
    if how is None:
        told = f"it renders the template: take back there what revision {reverted.leaving.number} changed"
        return make_proposal(owner, told, reverted.words())
    text = reverted.words()
    if reverted.operations is not None:
        text = kustomized(reverted.kind, reverted.namespace, reverted.name, list(reverted.operations))
    return make_proposal(owner, how.format(name=name, where=where), text)


def operations_between(
    present: Mapping[str, object], wanted: Mapping[str, object], index: int, names: Sequence[str]
) -> tuple[Operation, ...] | None:
    """Return the JSON patch that gives one container its earlier image and command line.

    None where that would show a token which belongs to none of the options of interest, or where the
    container is not the same one.

    Args:
        present: the pod template as it is.
        wanted: the earlier one.
        index: the container's place.
        names: the options of interest, as the engine spells them: `--max-num-seqs`.
    """
    now, then = container_at(present, index), container_at(wanted, index)
    if now is None or then is None or now.get("name") != then.get("name"):
        return None
    base = f"/spec/template/spec/containers/{index}"
    found: list[Operation] = [{"op": "test", "path": f"{base}/name", "value": now.get("name")}]
    if now.get(IMAGE) != then.get(IMAGE):
        found.append({"op": "test", "path": f"{base}/{IMAGE}", "value": now.get(IMAGE)})
        found.append({"op": "replace", "path": f"{base}/{IMAGE}", "value": then.get(IMAGE)})
    for field in COMMAND_LINE:
        tokens = _tokens(now, field), _tokens(then, field)
        if tokens[0] == tokens[1]:
            continue
        if not tokens[0] or not tokens[1] or not _are_of_interest(*tokens, names):
            return None
        found.extend(_list_operations(f"{base}/{field}", *tokens))
    return tuple(found)


def _tokens(container: Mapping[str, object], field: str) -> list[str]:
    items = container.get(field)
    return [str(item) for item in items] if isinstance(items, list) else []


def _are_of_interest(now: Sequence[str], then: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether every token that differs names an option of interest, or is the value behind one."""
    spelled = "|".join(re.escape(name).replace(r"\-", "[-_]") for name in names)
    option = re.compile(rf"(?:{spelled})(?:=\S*)?")
    for _, *places in _changes(now, then):
        for tokens, (start, end) in ((now, places[:2]), (then, places[2:])):
            for place in range(start, end):
                before = tokens[place - 1] if place else ""
                named = option.fullmatch(tokens[place])
                valued = option.fullmatch(before) and "=" not in before and not tokens[place].startswith("-")
                if not named and not valued:
                    return False
    return True


def _changes(now: Sequence[str], then: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    matcher = SequenceMatcher(a=now, b=then, autojunk=False)
    return (change for change in matcher.get_opcodes() if change[0] != "equal")


def _list_operations(path: str, now: Sequence[str], then: Sequence[str]) -> Iterator[Operation]:
    """Yield what makes one list of the other, from its end, so that places before it stay."""
    for _, start, end, first, last in reversed(list(_changes(now, then))):
        for place in reversed(range(start, end)):
            yield {"op": "test", "path": f"{path}/{place}", "value": now[place]}
            yield {"op": "remove", "path": f"{path}/{place}"}
        for offset, token in enumerate(then[first:last]):
            yield {"op": "add", "path": f"{path}/{start + offset}", "value": token}
