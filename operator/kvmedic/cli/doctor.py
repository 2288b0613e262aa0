"""`kvmedic doctor`: everything that stands between a fleet and a change, shown at once. Nothing is written.

The rules are those of the operator, asked of the same view of a fleet: of a cluster, or of manifests.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import typer

from kvmedic.api.resource import SpecInvalid
from kvmedic.api.rules import parse_duration
from kvmedic.cli.app import Form, end_command, show_text
from kvmedic.cli.options import call_later
from kvmedic.doctor.checks import Examination, Result, Verdict
from kvmedic.doctor.documents import DocumentsError, documents_in
from kvmedic.doctor.examine import examine_manifests
from kvmedic.doctor.targets import NoTargetError, find_targets, report_others, report_unchanged
from kvmedic.kube.objects import JsonObject, name_of
from kvmedic.model.fleet import DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET
from kvmedic.model.spec import place_of, typed_place

if TYPE_CHECKING:
    from kvmedic.cli.replay import Replay

NOT_ELIGIBLE, NOT_KNOWN = 1, 2
"""Exit codes beside 0: something stands in the way; something could not be determined, or asked."""
CODES = {Verdict.ELIGIBLE: 0, Verdict.NOT_ELIGIBLE: NOT_ELIGIBLE, Verdict.UNKNOWN: NOT_KNOWN}
KIND_NAMES = MappingProxyType(
    {
        **dict.fromkeys(("deploy", "deployment", "deployments", "deployments.apps"), DEPLOYMENT),
        **dict.fromkeys(("sts", "statefulset", "statefulsets", "statefulsets.apps"), STATEFUL_SET),
        **dict.fromkeys(("lws", "leaderworkerset", "leaderworkersets"), LEADER_WORKER_SET),
    }
)
"""How kubectl lets each kind of target be named before the slash."""


def target_name(text: str) -> str:
    """Return the target that a person means, as `place_of` names it; another kind ends the command."""
    kind, slash, name = text.rpartition("/")
    if slash and kind.lower() not in KIND_NAMES:
        end_command(
            f"{text}: only Deployments, StatefulSets and LeaderWorkerSets are changed; name one as "
            "deploy/NAME, sts/NAME or lws/NAME",
            NOT_KNOWN,
        )
    if name and not re.fullmatch(_NAME, name):
        end_command(
            f"{text}: no workload can have this name; use lower-case letters, digits, - and .", NOT_KNOWN
        )
    return place_of(KIND_NAMES[kind.lower()] if slash else DEPLOYMENT, name) if name else ""


_NAME = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
"""A DNS subdomain, as names of workloads are."""


def command(
    target: str,
    namespace: str,
    everywhere: bool,
    files: list[Path] | None,
    context: str,
    kubeconfig: str,
    prometheus: str,
    account: str,
    since: str,
    output: Form,
) -> None:
    """Examine what the arguments name, and print each check with its fix."""
    if [bool(target), everywhere, bool(files)].count(True) != 1 and not (target and files):
        end_command("say what to look at: deploy/NAME, -A, or -f FILE (and deploy/NAME)", NOT_KNOWN)
    name = target_name(target)
    span = span_of(since) if since else None
    if files:
        if span:
            end_command("--since needs a cluster and its metrics source: leave --file out", NOT_KNOWN)
        found = tuple(DoctorReport(each) for each in _of_files(files, name, namespace))
    else:
        place = "kvmedic.cli.live.cluster_doctor:examine_cluster"
        cluster = (kubeconfig, context)
        where = None if everywhere else namespace
        found = call_later(place, name, where, cluster, prometheus, account, span)
    if output is Form.JSON:
        print(_as_json(found))
    else:
        show_text(_as_text(found))
    raise typer.Exit(max((CODES[each.examination.verdict] for each in found), key=_gravity))


LEAST, LONGEST = timedelta(minutes=10), timedelta(days=14)
"""Of a replay: a trigger's window and hold fit twice into the least; a source keeps 15 days by default."""


def span_of(text: str) -> timedelta:
    """Return how far back a person means; a text that says nothing ends the command."""
    hint = f"--since {text}: write a duration from 10m to 14d, such as 12h or 3d"
    days = re.fullmatch(r"(\d{1,3})d", text)
    try:
        span = timedelta(days=int(days[1])) if days else parse_duration(text)
    except ValueError:
        end_command(hint, NOT_KNOWN)
    if not LEAST <= span <= LONGEST:
        end_command(hint, NOT_KNOWN)
    return span


def _gravity(code: int) -> int:
    """Return how much an exit code says: that something stands in the way counts most."""
    return (0, NOT_KNOWN, NOT_ELIGIBLE).index(code)


def _of_files(files: Sequence[Path], name: str, namespace: str) -> tuple[Examination, ...]:
    each_file = {file: read_documents([file]) for file in files}
    documents = [each for found in each_file.values() for each in found]
    places = {
        f"{each['kind']}/{name_of(each)}": str(file) for file, found in each_file.items() for each in found
    }
    names = (name,) if name else targets_of(documents, files)
    try:
        return tuple(examine_manifests(documents, each, namespace, files=places) for each in names)
    except SpecInvalid as error:
        end_command(f"KVRemediation in the files: {error}", NOT_KNOWN)
    except DocumentsError as error:
        end_command(f"{', '.join(map(str, files))}: {error}", NOT_KNOWN)


def targets_of(documents: Sequence[JsonObject], files: Sequence[Path]) -> tuple[str, ...]:
    """Return the workloads of files to look at, and report what is left out; having none ends the command."""
    try:
        names = find_targets(documents)
    except NoTargetError as error:
        listed = ", ".join(map(str, files))
        end_command(f"{listed}: {error}", NOT_ELIGIBLE if error.is_known else NOT_KNOWN)
    for each in (*report_unchanged(documents), *report_others(documents)):
        print(each, file=sys.stderr)
    return names


def read_documents(files: Sequence[Path]) -> list[JsonObject]:
    """Return the objects of all files; one that cannot be read ends the command."""
    found: list[JsonObject] = []
    for file in files:
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
            found += documents_in(text)
        except OSError as error:
            end_command(f"{file}: {error.strerror}; correct the path", NOT_KNOWN)
        except UnicodeDecodeError:
            end_command(f"{file} is not UTF-8 text", NOT_KNOWN)
        except DocumentsError as error:
            end_command(f"{file}: {error}", NOT_KNOWN)
    return found


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What is reported on one target."""

    examination: Examination
    replay: Replay | None = None
    look: str = ""
    """Command that looks at one moment of its past, without the time."""


MARKS = {Result.PASS: "pass", Result.FAIL: "FAIL", Result.UNKNOWN: "unknown", Result.NOT_NEEDED: "-"}


def _as_text(found: Sequence[DoctorReport]) -> Iterator[str]:
    """Yield verdict, table, what was of late and next command of each target; of many the count first."""
    if len(found) > 1:
        eligible = sum(each.examination.verdict is Verdict.ELIGIBLE for each in found)
        yield f"{eligible} of {len(found)} workloads are eligible"
    for report in found:
        each = report.examination
        if len(found) > 1:
            yield ""
        yield _headline(each)
        for check in each.checks:
            yield f"  {MARKS[check.result]:8} {check.name:18} {check.saw}"
            better = "better:" if check.result is Result.PASS else "fix:"
            if check.fix:
                yield f"{'':30} {better:7} {check.fix}"
            if check.fix and check.risk:
                yield f"{'':30} risk:   {check.risk}"
        if report.replay is not None:
            yield from call_later("kvmedic.cli.replay:replay_as_text", report.replay, report.look)
        yield f"next       {_next_command(each)}"


def _headline(found: Examination) -> str:
    place = f"{found.namespace}/{found.target}"
    match found.verdict:
        case Verdict.ELIGIBLE:
            where = "" if found.is_live else "; a file does not show the rest"
            return f"ELIGIBLE   {place}: nothing that was seen keeps kvmedic from changing it{where}"
        case Verdict.NOT_ELIGIBLE:
            topics = ", ".join(dict.fromkeys(str(each.name) for each in found.failed))
            return f"NOT ELIGIBLE {place}: kvmedic changes nothing of it, because of {topics}"
        case Verdict.UNKNOWN:
            topics = ", ".join(dict.fromkeys(str(each.name) for each in found.unknown))
            return f"UNKNOWN    {place}: nothing stands in the way, but {topics} are unknown"


def _next_command(found: Examination) -> str:
    """Return what to do next: the first fix, else what a failure says, or what comes after a fit fleet."""
    fixes = [each.fix for each in (*found.failed, *found.unknown) if each.fix]
    fixes += [each.saw for each in found.failed]
    where = f"{typed_place(found.target)} -n {found.namespace}"
    after = f"kvmedic init {where} >kvr.yaml" if found.is_live else f"kvmedic doctor {where}"
    if found.resource:
        after = f"kvmedic get {found.resource} -n {found.namespace}"
    return next(iter(fixes), after)


def _as_json(found: Sequence[DoctorReport]) -> str:
    passed = {Result.PASS: True, Result.FAIL: False}
    targets = [
        {
            "namespace": each.namespace,
            "target": each.target,
            "verdict": each.verdict,
            "eligible": {Verdict.ELIGIBLE: True, Verdict.NOT_ELIGIBLE: False}.get(each.verdict),
            "failed": len(each.failed),
            "unknown": len(each.unknown),
            "checks": [
                {
                    "name": check.name,
                    "result": check.result,
                    "passed": passed.get(check.result),
                    "saw": check.saw,
                    "reason": check.reason,
                    "fix": check.fix or None,
                    "risk": check.risk or None,
                    "figures": dict(check.figures),
                }
                for check in each.checks
            ],
            "next": _next_command(each),
            **_replay_of(report),
        }
        for report in found
        for each in (report.examination,)
    ]
    return json.dumps({"targets": targets}, indent=2)


def _replay_of(report: DoctorReport) -> dict[str, object]:
    if report.replay is None:
        return {}
    return {"replay": call_later("kvmedic.cli.replay:replay_as_json", report.replay)}
