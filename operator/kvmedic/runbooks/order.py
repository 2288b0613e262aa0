"""Which runbook of a spec has the word: in what order they are asked, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.spec import Policy, Runbook
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import (
    Branch,
    Diagnosed,
    Diagnosis,
    Evidence,
    Finding,
    diagnose,
    first_match,
    is_content,
)
from kvmedic.verdict.baseline import quorum_line


def judge_runbooks(policy: Policy, evidence: Evidence) -> tuple[str, Diagnosis]:
    """Return the first runbook that has something to say, and what it says.

    Where all are content it is the last; what an earlier one noticed is reported with it, as is what made it
    leave the fleet to the next. One that cannot judge does so too: trouble that another finds does not wait.

    Raises:
        ValueError: the spec names no runbook.
    """
    found = _first_word(policy, lambda runbook: _ask_runbook(runbook, evidence))
    if found is None:
        raise ValueError("a spec names at least one runbook")
    return found[0], _name_left_out(found[1], evidence)


def judge_first_branches(policy: Policy, evidence: Evidence) -> tuple[str, Diagnosis] | None:
    """Return the same where each runbook's first branches decide; None where a later one has to be asked."""
    found = _first_word(policy, lambda runbook: first_match(first_branches(runbook), evidence))
    return None if found is None else (found[0], _name_left_out(found[1], evidence))


def _name_left_out(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Return a diagnosis that names the replicas it does not rest on."""
    if not evidence.left_out:
        return diagnosis
    line = quorum_line(len(evidence.burn.pods), evidence.left_out)
    if isinstance(diagnosis, Inconclusive):
        return Inconclusive(diagnosis.reason, f"{diagnosis.message}; {line}")
    return replace(diagnosis, findings=(*diagnosis.findings, Finding("fleet", None, None, None, line)))


def _ask_runbook(runbook: Runbook, evidence: Evidence) -> Diagnosis:
    if runbook is Runbook.COMPRESSION_WITHOUT_SAVINGS and evidence.unanswered is not None:
        return evidence.unanswered
    return diagnose(RUNBOOKS[runbook], evidence)


def _first_word(policy: Policy, ask: Callable[[Runbook], Diagnosis | None]) -> tuple[str, Diagnosis] | None:
    """Return the first runbook that has something to say, else the last; None where one does not answer.

    A runbook that cannot judge has the word only where no later one finds trouble.
    """
    noticed: tuple[Finding, ...] = ()
    found: tuple[str, Diagnosis] | None = None
    unknown: tuple[str, Diagnosis] | None = None
    for runbook in in_order(policy.runbooks):
        said = ask(runbook)
        if said is None:
            return None
        if isinstance(said, Inconclusive):
            unknown = unknown or (str(runbook), said)
            noticed = (*noticed, _report_stopped_runbook(runbook, said))
            continue
        noticed = (*noticed, *said.findings)
        found = str(runbook), replace(said, findings=noticed)
        if said.branch.then is not None:
            return found
    return found if found and unknown and not is_content(found[1]) else unknown or found


def _report_stopped_runbook(runbook: Runbook, said: Inconclusive) -> Finding:
    return Finding("fleet", None, None, None, f"{runbook} cannot go on, {said.reason}: {said.message}")


def first_branches(runbook: Runbook) -> tuple[Branch, ...]:
    """Return a runbook's branches that ask for no change and stand before all that do."""
    return tuple(takewhile(lambda branch: branch.then is None, RUNBOOKS[runbook]))


def in_order(asked: Sequence[Runbook]) -> tuple[Runbook, ...]:
    """Return runbooks as they are asked: that on compression first, before the other one changes anything."""
    return tuple(sorted(asked, key=lambda runbook: runbook is not Runbook.COMPRESSION_WITHOUT_SAVINGS))


def with_unanswered(evidence: Evidence, diagnosis: Diagnosis, why: Blocked) -> Evidence:
    """Return evidence that says why the runbook on compression cannot go on, with what it had found."""
    facts = diagnosis.findings if isinstance(diagnosis, Diagnosed) else ()
    texts = dict.fromkeys((*(fact.text for fact in facts), why.message))
    return replace(evidence, unanswered=Inconclusive(why.reason, "; ".join(texts)))
