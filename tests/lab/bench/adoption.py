"""How many real fleets are let in, how many get a right and useful answer, and whether any edit is wrong.

    python -m lab.bench.adoption [--rows]

Each shape of `tests/data/fleets` is examined as `kvmedic doctor -f` examines it, in mode Auto with what
`kvmedic init` writes; of what is no Deployment the answer must name the object. Its cap on running sequences
is edited by the operator's own editor, in the live object and in the file, and what the engine is given then
is compared with what it was given before.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from kvmedic.cli.app import app_for
from kvmedic.cluster.looks import read_target
from kvmedic.doctor.checks import Check, Examination, Topic, Verdict, checks_of
from kvmedic.doctor.documents import Documents, as_served, documents_in
from kvmedic.doctor.examine import Seen, namespace_in, see_target
from kvmedic.manifests.flags import Setting, setting_of
from kvmedic.manifests.proposals import DesiredSetting, proposal_for
from kvmedic.model.edits import TokenEdit
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.plan import FlagStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Ownership
from kvmedic.runbooks.branches import Assignment
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.workload import Workload
from lab.bench.fleet_shapes import (
    NEW_CAP,
    Expected,
    Shape,
    cap_in,
    changes_between,
    container_at,
    objects_in,
    read_shapes,
    words_of,
)
from manifests.shell_oracle import ShellOracle

LET_IN, RIGHT = 0.70, 0.95
"""The goals: of the Deployments, and of all targets."""


@dataclass(slots=True)
class Outcome:
    """What became of one target."""

    shape: str
    expected: Expected
    verdict: Verdict | None = None
    """None: it is no Deployment."""
    failed: tuple[Check, ...] = ()
    respected: Verdict | None = None
    applied: Verdict | None = None
    """The same where the team says `spec.ownership`: Respect, or Apply for any owner."""
    faults: list[str] = field(default_factory=list)
    """What is not as expected."""
    wrong: list[str] = field(default_factory=list)
    """What an edit changed that it should not, or did not change that it should."""
    edits: int = 0

    @property
    def is_let_in(self) -> bool:
        """Return whether the operator would change it by itself."""
        return self.verdict is Verdict.ELIGIBLE

    @property
    def is_proposed(self) -> bool:
        """Return whether nothing but somebody else's template is in the way, who gets the exact change."""
        return bool(self.failed) and all(each.name is Topic.OWNER for each in self.failed)


def try_shapes(shapes: Sequence[Shape], oracle: ShellOracle) -> list[Outcome]:
    """Return what becomes of every target."""
    return [_try_target(shape, each, oracle) for shape in shapes for each in shape.expected]


def _try_target(shape: Shape, expected: Expected, oracle: ShellOracle) -> Outcome:
    outcome = Outcome(shape.name, expected)
    if expected.is_deployment:
        _examine(shape, outcome, oracle)
    else:
        _ask_doctor(shape, outcome)
    _edit_text(shape, outcome, oracle)
    return outcome


def _examine(shape: Shape, outcome: Outcome, oracle: ShellOracle) -> None:
    expected, documents = outcome.expected, documents_in(shape.manifest)
    place = namespace_in(documents, expected.key)
    reader = as_served(documents, place)
    seen = asyncio.run(see_target(reader, place, expected.key))
    if seen is None:
        outcome.faults.append("the Deployment was not found")
        return
    found = Examination(place, expected.key, seen.checks(), is_live=False)
    outcome.verdict, outcome.failed = found.verdict, found.failed
    outcome.applied, outcome.respected = (
        _verdict_by(seen, reader, place, each) for each in (Ownership.APPLY, Ownership.RESPECT)
    )
    if outcome.is_let_in is not expected.let_in:
        reasons = "; ".join(f"{each.name}: {each.saw}" for each in (*found.failed, *found.unknown))
        outcome.faults.append(f"let in is {outcome.is_let_in}, {expected.let_in} was expected ({reasons})")
    elif not expected.let_in:
        outcome.faults += _answer_faults(found.failed, seen, expected)
    outcome.faults += _live_faults(seen, outcome, oracle)


def _ask_doctor(shape: Shape, outcome: Outcome) -> None:
    """Note what the answer lacks of a target that is no Deployment: its name, and never that it is let in."""
    options = ["doctor", "-f", "-"]
    result = CliRunner().invoke(app_for(options), options, input=shape.manifest)
    output, says = result.output, outcome.expected.says or "/".join(outcome.expected.key.split("/")[:2])
    if result.exit_code not in {1, 2} or says not in output:
        outcome.faults.append(f"{says!r} is not in doctor's answer ({result.exit_code}): {output.strip()}")


def _verdict_by(seen: Seen, reader: Documents, namespace: str, ownership: Ownership) -> Verdict | None:
    """Return the verdict where a spec says what is done with an owned template."""
    policy = replace(seen.policy, ownership=ownership)
    view = asyncio.run(read_target(reader, namespace, policy))
    if view is None:
        return None
    checks = checks_of(view, policy, seen.neighbours)
    return Examination(namespace, policy.target.name, checks, is_live=False).verdict


def _answer_faults(failed: Sequence[Check], seen: Seen, expected: Expected) -> Iterator[str]:
    """Yield what the answer to a fleet that is kept out lacks: the reason, its words, what to type."""
    reasons = [str(each.reason) for each in failed if each.reason]
    if expected.reason not in reasons:
        yield f"the reason is {', '.join(reasons)}, {expected.reason} was expected"
    said = " ".join(f"{each.saw} {each.fix}" for each in failed) + _proposal(seen)
    if expected.says not in said:
        yield f"{expected.says!r} is not in the answer: {said}"
    if not expected.says and not all(each.fix for each in failed):
        yield "a failure says nothing to type"


def _proposal(seen: Seen) -> str:
    """Return what is given to the owner of a template so that the cap changes; empty where nobody owns it."""
    owner, workload = seen.view.fleet.owner, seen.view.workload(seen.policy.target)
    plan = _plan(workload)
    if owner is None or owner.template is None or not isinstance(plan, Plan):
        return ""
    (step,) = plan.steps
    setting, fleet = _setting(workload), seen.view.fleet
    edit = step.edit if isinstance(step, FlagStep) and isinstance(step.edit, TokenEdit) else None
    edit = edit or (step.file_of if isinstance(step, FlagStep) else None)
    if edit is None or setting is None:
        return ""
    desired = DesiredSetting("Deployment", fleet.namespace, fleet.name, setting, edit)
    return str(proposal_for(owner.template, desired))


def _setting(workload: Workload | Blocked) -> Setting | None:
    if isinstance(workload, Blocked):
        return None
    flag = workload.engine.profile.flag(Knob.MAX_NUM_SEQS)
    found = setting_of(flag, NEW_CAP, workload.engine) if flag is not None else None
    return found if isinstance(found, Setting) else None


def _plan(workload: Workload | Blocked) -> Plan | Blocked:
    if isinstance(workload, Blocked):
        return workload
    return plan_of(workload, Assignment(Knob.MAX_NUM_SEQS, NEW_CAP, Reason.CAP_RIGHT_SIZED, ""), 1)


def _live_faults(seen: Seen, outcome: Outcome, oracle: ShellOracle) -> Iterator[str]:
    """Yield what is not as expected of the edit of the live object."""
    expected, plan = outcome.expected, _plan(seen.view.workload(seen.policy.target))
    at = expected.live or expected.at
    if isinstance(plan, Blocked):
        if at:
            yield f"the live object is not edited: {plan.message}"
        return
    (step,) = plan.steps
    if not isinstance(step, FlagStep):
        yield "the plan is no change of a flag"
        return
    if not at:
        yield f"the live object is edited, and a refusal was expected ({expected.refused})"
    outcome.edits += 1
    template = seen.view.template
    if step.file_of is not None:
        place = f"file {step.file_of.config_map}"
        outcome.wrong += [] if step.file_of.after == str(NEW_CAP) else [f"{place} gets {step.file_of.after}"]
    else:
        place = _judge_change([template], [step.edit.apply(template)], outcome, oracle)
    if place != at:
        yield f"the live object is edited at {place}, {at or 'nothing'} was expected"


def _judge_change(before: list[Any], after: list[Any], outcome: Outcome, oracle: ShellOracle) -> str:
    """Note what is wrong with a change of one container, and return where it is."""
    changes = list(changes_between(before, after))
    if len(changes) != 1:
        outcome.wrong.append(f"{len(changes)} places differ: {[each.path for each in changes]}")
        return "several places"
    (change,) = changes
    old, new = (container_at(each, change.path) for each in (before, after))
    (was, rest), (now, kept) = (cap_in(words_of(each, oracle)) for each in (old, new))
    if (was, now) != (outcome.expected.was, NEW_CAP):
        outcome.wrong.append(f"the cap goes from {was} to {now}; it was {outcome.expected.was}")
    if rest != kept:
        outcome.wrong.append(f"other arguments change: {rest} -> {kept}")
    return change.place


def _edit_text(shape: Shape, outcome: Outcome, oracle: ShellOracle) -> None:
    """Edit the manifest's text as `kvmedic flags set` does."""
    expected = outcome.expected
    name, container = expected.names
    options = ["flags", "set", f"max_num_seqs={NEW_CAP}", "-f", "-"]
    for option, value in (("--name", name), ("--container", container), ("--engine", expected.engine)):
        options += [option, value] if value else []
    result = CliRunner().invoke(app_for(options), options, input=shape.manifest)
    if result.exit_code != 0:
        if not expected.refused or expected.refused not in result.stderr:
            outcome.faults.append(f"the text is not edited: {result.stderr.strip()}")
        return
    outcome.edits += 1
    if expected.refused:
        outcome.faults.append(f"the text is edited, and a refusal was expected ({expected.refused})")
        return
    before, after = objects_in(shape.manifest), objects_in(result.stdout)
    if expected.at.startswith("file "):
        place = _judge_file(before, after, outcome)
    else:
        place = _judge_change(before, after, outcome, oracle)
    if place != expected.at:
        outcome.faults.append(f"the text is edited at {place}, {expected.at} was expected")


def _judge_file(before: list[Any], after: list[Any], outcome: Outcome) -> str:
    """Note what is wrong with the changed copy of a ConfigMap, and return which one was copied."""
    added = [each for each in after if each not in before and each.get("kind") == "ConfigMap"]
    name = outcome.expected.at.removeprefix("file ")
    source = next(each for each in before if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name)
    (copy,) = added
    old, new = (yaml.safe_load(next(iter(each["data"].values()))) for each in (source, copy))
    if new != {**old, "max-num-seqs": NEW_CAP} or old["max-num-seqs"] != outcome.expected.was:
        outcome.wrong.append(f"the copy of ConfigMap/{name} has {new}")
    references = list(changes_between(before, [each for each in after if each not in added]))
    if [each.after for each in references] != [copy["metadata"]["name"]]:
        outcome.wrong.append(f"the references change: {references}")
    return f"file {name}"


def table(outcomes: Sequence[Outcome], shapes: int) -> str:
    """Return what the benchmark found, for people."""
    fleets = [each for each in outcomes if each.expected.is_deployment]
    let_in = sum(each.is_let_in for each in fleets)
    respected, applied = (
        sum(verdict is Verdict.ELIGIBLE for verdict in verdicts)
        for verdicts in zip(*((each.respected, each.applied) for each in fleets), strict=True)
    )
    proposed = sum(each.is_proposed for each in fleets)
    right = sum(not each.faults and not each.wrong for each in outcomes)
    causes: Counter[str] = Counter()
    for each in fleets:
        causes.update(sorted({str(check.reason or check.name) for check in each.failed}))
        causes.update([] if each.is_let_in or each.failed else ["something is not known"])
    rows = [
        ("shapes", shapes, ""),
        ("Deployments", len(fleets), ""),
        ("other targets", len(outcomes) - len(fleets), ""),
        ("let in (mode Auto)", let_in, f"{let_in / len(fleets):.0%}"),
        ("kept out by an owner alone", proposed, f"{proposed / len(fleets):.0%}"),
        ("let in with spec.ownership: Respect", respected, f"{respected / len(fleets):.0%}"),
        ("let in with spec.ownership: Apply", applied, f"{applied / len(fleets):.0%}"),
        *((f"  why not: {cause}", count, "") for cause, count in causes.most_common()),
        ("right and useful answer", right, f"{right / len(outcomes):.0%}"),
        ("edits", sum(each.edits for each in outcomes), ""),
        ("wrong edits", sum(bool(each.wrong) for each in outcomes), ""),
    ]
    return "\n".join(f"{name:<46}{count:>6}  {share}".rstrip() for name, count, share in rows)


def main(arguments: Sequence[str]) -> int:
    """Print the table, and with --rows each target; return 1 where a goal is missed."""
    shapes = read_shapes()
    with tempfile.TemporaryDirectory() as directory:
        outcomes = try_shapes(shapes, ShellOracle(Path(directory)))
    for each in outcomes:
        problems = [*each.wrong, *each.faults]
        if problems or "--rows" in arguments:
            print(f"{each.shape} {each.expected.key}: {each.verdict or '-'} {'; '.join(problems)}".rstrip())
    print(table(outcomes, len(shapes)))
    return int(any(each.wrong for each in outcomes) or bool(missed_goals(outcomes)))


def missed_goals(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the goals that are missed."""
    fleets = [each for each in outcomes if each.expected.is_deployment]
    let_in = sum(each.is_let_in for each in fleets) / len(fleets)
    right = sum(not each.faults and not each.wrong for each in outcomes) / len(outcomes)
    rows = (("of the Deployments are let in", let_in, LET_IN), ("of the answers are right", right, RIGHT))
    return [f"{share:.0%} {what}, {goal:.0%} are required" for what, share, goal in rows if share < goal]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
