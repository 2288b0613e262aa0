"""`kvmedic diagnose`: evidence, diagnosis and plan of one look, printed. Nothing is written anywhere.

The look is at a live fleet, at saved pages, or at a moment of the past in a Prometheus. A KVRemediation and
the workload's manifest may be given in files. Saved pages are judged here, within a second of a processor:
what asks a cluster, an engine or a Prometheus needs their clients, and is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.api.resource import KIND, SpecInvalid, find_unimplemented, policy_of, resource_from_manifest
from kvmedic.api.spec import KVRemediationSpec, TargetRef
from kvmedic.cli.app import REFUSED, USAGE, Form, end_command
from kvmedic.cli.options import call_later
from kvmedic.cli.report import Report, report_of_consultation
from kvmedic.cli.saved import (
    Consultation,
    ScrapeError,
    consult,
    doubt_of,
    evidence_of,
    gaps_in,
    interval_between,
    pages_of,
    signals_of,
    starts_of,
    version_named,
    with_method,
    with_starts,
)
from kvmedic.engines import profiles_for
from kvmedic.manifests.engine_file import contents_in
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.invocation import Selector, engine_in
from kvmedic.metrics.page import Page
from kvmedic.model.config_edits import ConfigMap
from kvmedic.model.devices import NodeHealth
from kvmedic.model.engine import Engine, Version
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.spec import Policy, Runbook
from kvmedic.runbooks.branches import Evidence
from kvmedic.runbooks.workload import Workload, explain_manifest_error, workload_of

_ANY = "any"
"""Name of the workload where no spec names one."""
_DEFAULT_SPEC = KVRemediationSpec(
    target_ref=TargetRef(name=_ANY), node_health=NodeHealth.IF_AVAILABLE, runbooks=list(Runbook)
)
"""What counts without a spec: a look at files changes nothing, so unknown node health stops nothing, and
every runbook is asked."""


class GivenError(Exception):
    """A file cannot be used; the message names the file, the fault and the fix."""


def policy_in(file: str) -> Policy:
    """Return the policy of a KVRemediation in a file; without a file that of `_DEFAULT_SPEC`.

    Raises:
        GivenError: the file cannot be used.
    """
    spec = _spec(file) if file else _DEFAULT_SPEC
    if pending := find_unimplemented(spec):
        raise GivenError(f"{file}: {'; '.join(pending)}")
    return policy_of(spec)


def workload_in(file: str, policy: Policy, version: Version | None = None) -> Workload | Blocked | None:
    """Return the engine's command line in a manifest; None without a file, `Blocked` if it cannot be read.

    Args:
        version: the engine's; None: the image's tag names it.

    Raises:
        GivenError: the file is no manifest.
    """
    if not file:
        return None
    target = policy.target
    owner = None if target.name == _ANY else target.name
    text, profiles = _read_input(file), profiles_for(target.engine)
    chosen = engine_in(text, profiles, Selector(target.container, owner))
    if isinstance(chosen, ManifestError):
        if chosen.reason is ErrorReason.NOT_A_MANIFEST:
            raise GivenError(f"{file}: {chosen.message}")
        message, several = f"{file}: {chosen.message}", chosen.reason is ErrorReason.SEVERAL_ENGINES
        if several:
            message += (
                "; name one in spec.targetRef (name, container) of a KVRemediation, and give that as --spec"
            )
        return Blocked(explain_manifest_error(chosen).reason, message)
    found, _ = chosen
    template = {"spec": {**found.pod_spec, "containers": [*[{}] * found.index, dict(found.data)]}}
    engines = profiles if version is None else tuple(Engine(profile, version) for profile in profiles)
    maps = {name: ConfigMap(contents) for name, contents in contents_in(text).items()}
    return workload_of(ObjectRef(found.kind, found.owner), "", template, found.name, engines, maps)


def _spec(file: str) -> KVRemediationSpec:
    try:
        documents = list(YAML(typ="safe", pure=True).load_all(_read_input(file)))
    except YAMLError:
        raise GivenError(f"{file}: not valid YAML; check it with a linter") from None
    found = [one for one in documents if isinstance(one, dict) and one.get("kind") == KIND]
    if len(found) != 1:
        raise GivenError(f"{file}: {len(found)} objects of kind {KIND}; give a file with exactly one")
    try:
        return resource_from_manifest(found[0]).spec
    except SpecInvalid as error:
        raise GivenError(f"{file}: {'; '.join(error.problems)}") from None


def _read_input(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise GivenError(f"{file}: {error.strerror}; correct the path") from None
    except UnicodeDecodeError:
        raise GivenError(f"{file} is not UTF-8 text") from None


_WAYS = (
    "say what to look at: NAME (a KVRemediation of a cluster), a running engine (--url http://HOST:PORT), "
    "two saved pages (--scrape T0.txt --scrape T1.txt), or a moment of the past (--prometheus URL --at TIME)"
)

_NO_HOLD = (
    "unknown node health is ignored here; on a cluster spec.nodeHealth: Required waits until the DCGM "
    "exporter reports every GPU"
)

_IGNORED = (
    "KV compression is on, but spec.runbooks does not list CompressionWithoutSavings: diagnosis and "
    "plan ignore it"
)


@dataclass(frozen=True, slots=True)
class Files:
    """What is given in files beside the evidence."""

    spec: str
    manifest: str
    version: Version | None
    """Of the engine; None: the image's tag in the manifest names it."""
    logs: tuple[str, ...] = ()
    """Start-up logs, as they were given."""


def command(
    name: str,
    namespace: str,
    context: str,
    kubeconfig: str,
    prometheus: str,
    url: list[str] | None,
    scrape: list[str] | None,
    log: list[str] | None,
    interval: str,
    at: str,
    pod_regex: str,
    manifest: str,
    spec: str,
    engine_version: str | None,
    verbose: bool,
    output: Form,
) -> None:
    """Look once, and print what was found."""
    files = Files(spec, manifest, version_named(engine_version), tuple(log or ()))
    if [bool(name), bool(url), bool(scrape), bool(at)].count(True) != 1:
        end_command(_WAYS, USAGE)
    if wrong := _misuse(files, bool(name), bool(url or scrape)):
        end_command(wrong, USAGE)
    cluster = kubeconfig, context
    try:
        if scrape:
            report = _of_pages(pages_of(scrape), interval_between(interval), files)
        elif url:
            pages, apart = call_later("kvmedic.cli.scraping:look_twice", url, interval_between(interval))
            report = _of_pages(pages, apart, files)
        elif name:
            report = call_later("kvmedic.cli.plan:report_live", cluster, namespace, name, prometheus)
        else:
            where = cluster, namespace, pod_regex
            report = call_later("kvmedic.cli.live.past_look:report_past", at, where, prometheus, files)
    except (ScrapeError, GivenError) as error:
        end_command(error, USAGE)
    place = f"{name} -n {namespace}" if namespace else name
    report = replace(report, next_command=_next_command(report, place, manifest))
    report.show(output, verbose)
    if name:
        call_later("kvmedic.cli.plan:hint_at_source", str(report.diagnosis.reason), prometheus)
    raise typer.Exit(REFUSED if report.is_inconclusive else 0)


def _next_command(report: Report, place: str, manifest: str) -> str:
    """Return what a person types next, by what was found; empty: nothing needs it.

    Args:
        report: on the look.
        place: name and namespace of a live fleet's resource; empty: the look was at something else.
        manifest: the file that was given.
    """
    if place:
        what = (
            "explain" if report.blocked or report.is_inconclusive else "plan" if report.changes else "watch"
        )
        return f"kvmedic {what} {place}"
    flags = [f"{each.knob_flag}={each.after}" for each in report.changes if each.knob_flag and each.after]
    if flags and manifest:
        return f"kvmedic flags set {flags[0]} -f {manifest}"
    if flags:
        return "the same with --manifest FILE, which says what is set now"
    return "the same with -v, which shows every reading" if report.is_inconclusive else ""


def _misuse(files: Files, is_live: bool, has_pages: bool) -> str:
    """Return what is wrong with files beside a way of looking; empty: nothing."""
    if is_live and (files.spec or files.manifest or files.version):
        return "NAME has its own spec and target: leave --spec, --manifest and --engine-version out"
    if files.logs and not has_pages:
        return "--log needs the pages of its replica: give --scrape or --url too"
    if files.version and not files.manifest:
        return "--engine-version needs a manifest: give --manifest too"
    return ""


def _of_pages(pages: Mapping[str, tuple[Page, ...]], interval: timedelta | None, files: Files) -> Report:
    policy = policy_in(files.spec)
    workload = workload_in(files.manifest, policy, files.version)
    starts = starts_of(files.logs, pages)
    evidence, notes = evidence_of(pages, policy.trigger, interval)
    evidence = with_starts(evidence, starts, signals_of(pages).pool.null_blocks)
    doubt = doubt_of(pages)
    found = (
        consult(evidence, policy, workload)
        if doubt is None
        else list_doubts(with_method(evidence, policy, workload), policy, doubt)
    )
    shown = (*notes, *remarks_on(policy, found)) if doubt is None else ()
    target = {"scrapes": ", ".join(pages)}
    return report_of_consultation(found, target, (*shown, *gaps_in(starts)), doubt)


def list_doubts(evidence: Evidence, policy: Policy, doubt: Inconclusive) -> Consultation:
    """Return that nothing is judged, and why."""
    return Consultation(evidence, str(policy.runbooks[0]), doubt, None, None, None)


def remarks_on(policy: Policy, found: Consultation) -> tuple[str, ...]:
    """Return what a reader must know of the spec."""
    left_out = Runbook.COMPRESSION_WITHOUT_SAVINGS not in policy.runbooks
    ignored = _IGNORED if found.evidence.compression is not None and left_out else ""
    held = _NO_HOLD if policy.node_health is NodeHealth.REQUIRED else ""
    return tuple(each for each in (held, ignored) if each)
