"""What a person saved, judged without a cluster: pages of `/metrics`, start-up logs, and whose they are.

--scrape T0.txt --scrape T1.txt                      one replica, the older page first
--scrape a=a0.txt --scrape a=a1.txt --scrape b=…     several replicas, by name
--log a=a.log --log b=b.log                          by the names that their scrapes have; one needs none

Files may be compressed, and in whatever encoding a shell gave them. Logs may hold prompts and secrets:
nothing is kept or shown of one but what `engines.engine_log` looks for.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from math import isfinite
from pathlib import Path

import typer

from kvmedic.api.rules import parse_duration
from kvmedic.engines import VOCABULARIES
from kvmedic.engines.engine_log import Started, parse_start, phrases
from kvmedic.engines.signal_sources import SignalTable
from kvmedic.metrics.page import (
    Page,
    Restart,
    find_restart,
    moment,
    observe_saved_pages,
    parse_page,
    replica_of,
)
from kvmedic.model.engine import Version
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy, Runbook, Trigger
from kvmedic.model.status import Record
from kvmedic.runbooks.branches import Assignment, Beyond, Diagnosis, Evidence, NoChange, Setting, TurnOff
from kvmedic.runbooks.compression.bundle import bundle_plan
from kvmedic.runbooks.compression.methods import compressed_of, eviction_of
from kvmedic.runbooks.order import judge_runbooks, with_unanswered
from kvmedic.runbooks.planning import proposal
from kvmedic.runbooks.preemption.levers import present_setting
from kvmedic.runbooks.preemption.scale_out import report_spent_levers
from kvmedic.runbooks.workload import Workload

_GZIP = b"\x1f\x8b"
_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
"""Marks at the start of a text, and its encoding; shells of Windows redirect into UTF-16."""


class ScrapeError(Exception):
    """The files cannot be used as they were given; the message says why and what to do."""


def _read_text(file: str, most_bytes: int, advice: str, *, is_whole: bool) -> str:
    """Return a file's text; of a compressed one the first part, without a letter that was cut off.

    Args:
        is_whole: a compressed file must be all there, too.

    Raises:
        ScrapeError: it cannot be read, is larger than `most_bytes`, holds no text, or not all of it.
    """
    try:
        with Path(file).open("rb") as source:
            data = source.read(most_bytes + 1)
    except OSError as error:
        raise ScrapeError(f"{file}: {error.strerror}; correct the path") from None
    if len(data) > most_bytes:
        raise ScrapeError(f"{file} is larger than {most_bytes >> 20} MiB{advice}")
    try:
        data, is_cut = _unpack(data, most_bytes)
        encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
        text = codecs.getincrementaldecoder(encoding)().decode(data)
    except (UnicodeDecodeError, zlib.error):
        raise ScrapeError(f"{file} is neither text nor gzip{advice}") from None
    if is_whole and is_cut:
        raise ScrapeError(
            f"{file} is cut off: its gzip stream has no end, or unpacks to over {most_bytes >> 20} MiB; "
            "copy it again, or save the page again"
        )
    if "\0" in text:
        raise ScrapeError(f"{file} is neither text nor gzip{advice}")
    return text.replace("\r\n", "\n")


def _unpack(data: bytes, most_bytes: int) -> tuple[bytes, bool]:
    """Return what was compressed by gzip, in one part or several, and whether some of it is missing.

    Raises:
        zlib.error: it looks like gzip and is something else.
    """
    if not data.startswith(_GZIP):
        return data, False
    found, is_cut = bytearray(), False
    while data.startswith(_GZIP) and not is_cut and len(found) < most_bytes:
        part = zlib.decompressobj(zlib.MAX_WBITS | 16)
        found += part.decompress(data, most_bytes - len(found))
        data, is_cut = part.unused_data, not part.eof
    return bytes(found), is_cut or data.startswith(_GZIP)


ONLY = "replica"
"""Name of the replica where none is given."""
_SAVE = "save it with curl -s http://POD:8000/metrics"
LARGEST_PAGE_BYTES = 64 << 20
"""A page of vLLM 0.32 is 50 kB; a file beyond this is something else."""


def pages_of(arguments: Sequence[str]) -> Mapping[str, tuple[Page, ...]]:
    """Return the pages by replica, in the order in which they were given.

    Raises:
        ScrapeError: a file cannot be read, or the pages cannot be compared.
    """
    named = [named_file("--scrape", argument) for argument in arguments]
    if len({bool(replica) for replica, _ in named}) > 1:
        raise ScrapeError("some scrapes name their replica and some do not; write NAME=FILE for each")
    files: dict[str, list[str]] = {}
    for replica, file in named:
        files.setdefault(replica or ONLY, []).append(file)
    if lone := next((replica for replica, many in files.items() if len(many) < 2), ""):
        which = "" if lone == ONLY else f" of {lone}"
        raise ScrapeError(
            f"one scrape{which} shows counters since the start, not what happens now: give two, taken some "
            "minutes apart (--scrape T0.txt --scrape T1.txt)"
        )
    texts = {replica: [(file, _read_page(file)) for file in many] for replica, many in files.items()}
    _refuse_shared(texts)
    return {replica: pages_between(many) for replica, many in texts.items()}


def _refuse_shared(texts: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Refuse a page of two replicas: each page has its process's start, so no two write the same.

    Raises:
        ScrapeError: a page was given for two replicas.
    """
    owners: dict[str, str] = {}
    for replica, many in texts.items():
        for file, text in many:
            if (other := owners.setdefault(text, replica)) != replica:
                raise ScrapeError(
                    f"{file} is given as {other} and as {replica}: save each replica's own page "
                    "(a curl through a Service reaches any of them)"
                )


def evidence_of(
    pages: Mapping[str, tuple[Page, ...]], trigger: Trigger, interval: timedelta | None
) -> tuple[Evidence, tuple[str, ...]]:
    """Return both looks, and what a reader must know about them.

    The trouble is looked for over the later half of the pages, the lengths over all of them.
    """
    signals = signals_of(pages)
    recent = {name: many[(len(many) - 1) // 2 :] for name, many in pages.items()}
    burn, sizing = (
        observe_saved_pages(
            part,
            signals,
            None if interval is None else interval.total_seconds() * (max(map(len, part.values())) - 1),
        )
        for part in (recent, pages)
    )
    notes: list[str] = []
    seconds = sizing.observation.window_seconds
    if interval is None and isfinite(seconds):
        notes.append(
            f"the engine was busy for {seconds:.0f} s between the first and the last scrape, "
            "by its own steps; --interval sets the real time"
        )
    elif interval is None:
        notes.append(
            "the time between the scrapes is unknown, so it is not checked whether requests take "
            "longer; give --interval"
        )
    if sizing.resting:
        notes.append(
            f"nothing ran on {', '.join(sizing.resting)} at the moment of any scrape, so gauges show "
            f"nothing; scrape while requests are being served"
        )
    return Evidence(burn.observation, sizing.observation, trigger), tuple(notes)


def interval_between(text: str) -> timedelta | None:
    """Return the time between two pages as a person gave it; None where it is left out.

    Raises:
        ScrapeError: it is no duration, or none that passes between two pages.
    """
    if not text:
        return None
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise ScrapeError(f"--interval {text}: {error}") from None
    if found <= timedelta(0):
        raise ScrapeError(f"--interval {text}: the second scrape comes after the first")
    return found


def signals_of(pages: Mapping[str, Sequence[Page]]) -> SignalTable:
    """Return what the engine exports whose pages these are; of pages of none, of the first engine known."""
    tables = [each.signals for each in VOCABULARIES]
    firsts = [many[0] for many in pages.values() if many]
    ours = (table for table in tables if any(replica_of(page, table) is not None for page in firsts))
    return next(ours, tables[0])


def doubt_of(pages: Mapping[str, tuple[Page, ...]]) -> Inconclusive | None:
    """Return why the pages themselves say nothing, or None."""
    signals = signals_of(pages)
    for name, many in sorted(pages.items()):
        if foreign := next((page for page in many if replica_of(page, signals) is None), None):
            return Inconclusive(
                Reason.METRICS_MISSING,
                f"{name}: no series {signals.presence} in {foreign.origin}: not an engine's page, or one "
                "that runs with --disable-log-stats; scrape /metrics of the engine's own port",
            )
        if restart := find_restart(many, signals):
            return Inconclusive(Reason.METRICS_MISSING, _say_restart(name, restart))
    return None


def _say_restart(name: str, found: Restart) -> str:
    before, after = found.before.origin, found.after.origin
    if found.is_other_process:
        return (
            f"{name}: {before} and {after} are of different processes ({found.shown_by}): the engine "
            "restarted in between, or they are of several replicas (then write NAME=FILE); scrape twice "
            "without a restart"
        )
    return (
        f"{name}: from {before} to {after} {found.shown_by}: the older scrape must come first, "
        "and the engine must not restart in between"
    )


def named_file(option: str, argument: str) -> tuple[str, str]:
    """Return replica and file; a file whose own name has an equals sign counts as a file.

    Raises:
        ScrapeError: it is neither FILE nor NAME=FILE.
    """
    replica, sign, file = argument.partition("=")
    if not sign or Path(argument).exists():
        return "", argument
    if not replica or not file:
        raise ScrapeError(f"{option} {argument}: write FILE, or NAME=FILE with the replica's name")
    return replica, file


def pages_between(texts: Sequence[tuple[str, str]]) -> tuple[Page, ...]:
    """Return a replica's pages, each given with where it is from, the oldest first.

    Raises:
        ScrapeError: a text is no page, or two are the same.
    """
    for (older, before), (newer, after) in pairwise(texts):
        if before == after:
            raise ScrapeError(f"{older} and {newer} are the same scrape: take the second some minutes later")
    return tuple(_page(origin, text, place) for place, (origin, text) in enumerate(texts))


def _page(file: str, text: str, place: int) -> Page:
    try:
        page = parse_page(text, moment(place), origin=file)
    except ValueError as error:
        raise ScrapeError(
            f"{file} is no metrics page in Prometheus' text format ({error}); {_SAVE}"
        ) from None
    if page.repeated_series:
        raise ScrapeError(
            f"{file} has a series of {page.repeated_series} twice, as where one page "
            f"was appended to another (>>) or several replicas' pages were joined; {_SAVE}, each page "
            "into a file of its own"
        )
    return page


def _read_page(file: str) -> str:
    """Return a page's text, with or without the headers that curl -i adds."""
    text = _read_text(file, LARGEST_PAGE_BYTES, "; save the page as it is served", is_whole=True)
    text = text.partition("\n\n")[2] if text.startswith("HTTP/") else text
    if not text.strip():
        raise ScrapeError(f"{file} is empty: {_SAVE}, and see that it prints the page")
    return text


LARGEST_LOG_BYTES = 16 << 20
"""A start of vLLM 0.32 writes 9 kB (recorded, CPU build); each rank of a large model adds some."""
_BEGINNING = "give its beginning: kubectl logs POD -c CONTAINER | head -c 1000000 >startup.log"


def starts_of(arguments: Sequence[str], replicas: Collection[str]) -> dict[str, Started]:
    """Return what the logs show, by replica.

    Raises:
        ScrapeError: a file cannot be used, or its replica is unknown.
    """
    found: dict[str, Started] = {}
    for argument in arguments:
        name, file = named_file("--log", argument)
        replica = _replica(argument, name, replicas)
        if replica in found:
            raise ScrapeError(
                f"--log {argument}: there is a log of {replica} already; give one start of each"
            )
        text = _read_text(file, LARGEST_LOG_BYTES, f": no start-up log; {_BEGINNING}", is_whole=False)
        lines = text.split("\n")
        starts = [parse_start(lines, each.start) for each in VOCABULARIES]
        found[replica] = next((start for start in starts if start != Started()), starts[0])
    return found


def with_starts(evidence: Evidence, starts: Mapping[str, Started], null: int) -> Evidence:
    """Return evidence with what logs show, also of pools that no metric shows.

    Args:
        null: blocks of a pool that hold nothing.
    """
    sizes = {name: start.size for name, start in starts.items() if start.size is not None}
    burn, sizing = (seen.with_pools(sizes, null) for seen in (evidence.burn, evidence.sizing))
    return replace(evidence, burn=burn, sizing=sizing, started=dict(starts))


def gaps_in(starts: Mapping[str, Started]) -> tuple[str, ...]:
    """Return of which replicas the log is not all of a start."""
    return tuple(
        f"the log of {name} does not contain the engine's whole start, from its arguments to its pool, "
        f"so something may be missing; {_BEGINNING}"
        for name, start in sorted(starts.items())
        if not start.is_whole
    )


def _replica(argument: str, name: str, replicas: Collection[str]) -> str:
    if not name and len(replicas) == 1:
        return next(iter(replicas))
    if name in replicas:
        return name
    raise ScrapeError(
        f"--log {argument}: which replica? Write NAME=FILE with the name of its scrapes: "
        f"{', '.join(sorted(replicas))}"
    )


_FIRST_GENERATION = 1
"""A manifest has no generation; nobody approves an offline plan by its digest."""


@dataclass(frozen=True, slots=True)
class Consultation:
    """What the evidence says, and what would be set."""

    evidence: Evidence
    runbook: str
    diagnosis: Diagnosis
    advice: Assignment | Beyond | None
    """What the branch asks for; None where it asks for nothing."""
    plan: Plan | None
    """The advice on the workload's own command line; None without a workload."""
    blocked: Blocked | None
    """Why nothing would be set although a branch applies."""


def consult(evidence: Evidence, policy: Policy, workload: Workload | Blocked | None) -> Consultation:
    """Return the diagnosis of the evidence and the plan that would follow.

    Args:
        workload: the engine's command line; None where nobody gave it, a fault where it cannot be read.
    """
    found = _consult_runbook(evidence, policy, workload)
    why = found.blocked
    if why is None or found.runbook != Runbook.COMPRESSION_WITHOUT_SAVINGS:
        return found
    other = _consult_runbook(with_unanswered(found.evidence, found.diagnosis, why), policy, workload)
    return found if other.plan is None and other.advice is None else other


def _consult_runbook(evidence: Evidence, policy: Policy, workload: Workload | Blocked | None) -> Consultation:
    evidence = with_method(evidence, policy, workload)
    runbook, diagnosis = judge_runbooks(policy, evidence)
    found = Consultation(evidence, runbook, diagnosis, None, None, None)
    if isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return found
    known = Setting(None, policy.levers)
    if isinstance(workload, Workload):
        known = present_setting(workload, policy.levers, Record(), evidence)
    known = replace(known, scale_out=policy.scale_out)
    if isinstance(workload, Workload):
        plan = proposal(workload, diagnosis.branch.then, evidence, known, _FIRST_GENERATION)
        if isinstance(plan, TurnOff):
            return _plan_bundle(replace(found, advice=plan), workload, plan)
        if isinstance(plan, NoChange):
            return _without_lever(found, plan, known, policy, workload)
        return replace(found, plan=plan) if isinstance(plan, Plan) else replace(found, advice=plan)
    advice = diagnosis.branch.then(evidence, known)
    if isinstance(advice, NoChange):
        return _without_lever(found, advice, known, policy, workload)
    if workload is None or not isinstance(advice, Assignment | TurnOff):
        return replace(found, advice=advice)
    wish = (
        f"{advice.method} cannot be turned off"
        if isinstance(advice, TurnOff)
        else f"{advice.knob} {advice.value} cannot be set"
    )
    why = Blocked(workload.reason, f"{wish}: {workload.message}")
    return replace(found, blocked=why, advice=advice)


def _plan_bundle(found: Consultation, workload: Workload, advice: TurnOff) -> Consultation:
    plan = bundle_plan(workload, advice, _FIRST_GENERATION)
    return replace(found, plan=plan) if isinstance(plan, Plan) else replace(found, blocked=plan)


def with_method(evidence: Evidence, policy: Policy, workload: Workload | Blocked | None) -> Evidence:
    """Return evidence with the KV compression method; without a workload from labels and logs alone."""
    known, log = workload if isinstance(workload, Workload) else None, phrases(evidence.started)
    method = compressed_of(known, policy.compression, (), evidence.burn, log)
    return replace(evidence, evicts=eviction_of(known, log) if known else None, compression=method)


def _without_lever(
    found: Consultation, why: NoChange, known: Setting, policy: Policy, workload: Workload | Blocked | None
) -> Consultation:
    """Return what follows where no lever applies: the branches for that, once each was asked."""
    if not why.passes_on or found.evidence.spent is not None:
        return replace(found, blocked=Blocked(why.reason, why.message))
    spent = report_spent_levers(why, known, len(found.evidence.burn.pods))
    return _consult_runbook(replace(found.evidence, spent=spent), policy, workload)


def version_named(text: str | None) -> Version | None:
    """Return the version that an option names; None without the option."""
    try:
        return Version.parse(text) if text is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--engine-version") from error
