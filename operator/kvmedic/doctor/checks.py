"""What must be so before a fleet is changed, one check after the other: pass, fail or unknown, and the fix.

The rules are the operator's own: each check asks the very function that the operator asks before it begins,
so that both say the same. What is unknown never passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from kvmedic.doctor.remedies import LOOKS, UNDRAINED, fix_for, second_replica
from kvmedic.model.devices import NodeHealth, Vitals
from kvmedic.model.edits import containers_of
from kvmedic.model.engine import Knob, Presence
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.fleet import ROLLING, Fleet, OwnerKind
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.run import Run
from kvmedic.model.spec import Ownership, Policy, Spare, place_of, typed_place
from kvmedic.rollout.preconditions import (
    WRITTEN,
    Neighbours,
    find_blockers,
    find_owner_rollout_blocker,
    find_rollout_blockers,
    remarks,
)
from kvmedic.rollout.spares.room import Finding, RoomUnknown
from kvmedic.rollout.spares.ways import (
    Beside,
    Short,
    no_spare_of,
    refuse_without_spare,
    way_without_spare,
    weigh_room,
)
from kvmedic.rollout.start_failure import start_limit
from kvmedic.runbooks.branches import Assignment, Diagnosis
from kvmedic.runbooks.planning import end_of_requests, plan_of
from kvmedic.runbooks.workload import View, Workload


class Result(StrEnum):
    """How a check came out."""

    PASS = "Pass"
    FAIL = "Fail"
    UNKNOWN = "Unknown"
    NOT_NEEDED = "NotNeeded"


class Topic(StrEnum):
    """What a check is about, in the order of the report."""

    NAMESPACE = "namespace"
    TARGET = "target"
    ENGINE = "engine"
    LEVERS = "levers"
    PORT = "port"
    METRICS = "metrics"
    FRONT = "front"
    DRAIN = "drain"
    STRATEGY = "strategy"
    SPARE = "spare"
    OWNER = "owner"
    REPLICAS = "replicas"
    ROLLOUT = "rollout"
    AUTOSCALER = "autoscaler"
    DISRUPTION_BUDGET = "disruption budget"
    START = "start"
    LAST_REQUESTS = "last requests"
    NODE_HEALTH = "node health"
    RIGHTS = "rights"


ONLY_LIVE = frozenset({Topic.METRICS, Topic.NODE_HEALTH, Topic.RIGHTS})
"""What no document can show."""


@dataclass(frozen=True, slots=True)
class Check:
    """One precondition and how it stands."""

    name: Topic
    result: Result
    saw: str
    """What was seen; of a failure in the operator's own words."""
    fix: str = ""
    """What to type or to change; of a check that passes: what would make it better."""
    risk: str = ""
    """What the fix does to a fleet that serves; empty: nothing."""
    reason: Reason | None = None
    """The operator's reason not to begin; None where it has none."""
    is_decisive: bool = True
    """The operator would not begin without knowing; otherwise it tries."""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """The numbers behind it by name, with their units; None: not known."""


class Verdict(StrEnum):
    """What all checks come to."""

    ELIGIBLE = "Eligible"
    NOT_ELIGIBLE = "NotEligible"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Examination:
    """All checks of one target."""

    namespace: str
    target: str
    checks: tuple[Check, ...]
    is_live: bool = True
    """Its objects were read from a cluster."""
    resource: str = ""
    """Name of the KVRemediation that looks after it; empty where there is none."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """Return what keeps the operator from changing the target."""
        return tuple(each for each in self.checks if each.result is Result.FAIL)

    @property
    def unknown(self) -> tuple[Check, ...]:
        """Return what could not be determined, although it could be where its objects are from."""
        return tuple(
            each
            for each in self.checks
            if each.result is Result.UNKNOWN
            and each.is_decisive
            and (self.is_live or each.name not in ONLY_LIVE)
        )

    @property
    def verdict(self) -> Verdict:
        """Return whether the operator would change the target in mode Auto."""
        if self.failed:
            return Verdict.NOT_ELIGIBLE
        return Verdict.UNKNOWN if self.unknown else Verdict.ELIGIBLE


TOPICS: Mapping[Reason, Topic] = MappingProxyType(
    {
        Reason.OWNED_BY_CONTROLLER: Topic.OWNER,
        Reason.MANAGED_BY_GITOPS: Topic.OWNER,
        Reason.MANAGED_BY_HELM: Topic.OWNER,
        Reason.ROTATION_LABEL_UNUSABLE: Topic.DRAIN,
        Reason.ROTATION_LABEL_WITHOUT_EFFECT: Topic.DRAIN,
        Reason.DRAIN_IMPOSSIBLE: Topic.DRAIN,
        Reason.NO_REPLICAS: Topic.REPLICAS,
        Reason.MANAGED_BY_VPA: Topic.AUTOSCALER,
        Reason.AUTOSCALER_ACTIVE: Topic.AUTOSCALER,
        Reason.NO_ROOM_FOR_SPARE: Topic.SPARE,
        Reason.SPARE_NEEDED: Topic.SPARE,
    }
)
"""Which check a reason of the operator belongs to; any other is about the rollout that is under way."""


def names_of(fleet: Fleet, resource: str = "") -> dict[str, str]:
    """Return what fixes are filled in with; of a target without a resource its own name counts for one."""
    return {
        "namespace": fleet.namespace,
        "name": resource or fleet.name,
        "target": fleet.name,
        "kind": fleet.kind,
        "digest": "DIGEST",
        "operator": "kvmedic-system",
        "stop": "kvmedic-stop",
    }


def failure(why: Blocked, names: Mapping[str, str], topic: Topic | None = None) -> Check:
    """Return the check that fails by a reason of the operator's."""
    fix, risk = fix_for(why.reason, names)
    name = topic or TOPICS.get(why.reason, Topic.ROLLOUT)
    return Check(name, Result.FAIL, why.message, fix, risk, why.reason)


def checks_of(
    view: View, policy: Policy, neighbours: Neighbours | str, resource: str = ""
) -> tuple[Check, ...]:
    """Return every check that a target's own objects can answer, in the order of `Topic`.

    Args:
        view: the target.
        policy: what its resource says, or would say.
        neighbours: who else has a say in it, or why that is not known.
        resource: name of its resource; empty where there is none.
    """
    names = names_of(view.fleet, resource)
    found = [*_engine_checks(view, policy, names), _front(view.fleet, names)]
    written = written_owner(view.fleet, policy) is not None
    found += [_written_field(view.fleet)] if written else []
    begins = replace(view.fleet, owner=None) if written else view.fleet
    why = list(find_rollout_blockers(begins))
    if isinstance(neighbours, Neighbours):
        why += find_blockers(neighbours, view.fleet)
    found += [failure(each, names) for each in why if not _follows(each, view.fleet)]
    topics = {each.name for each in found}
    usual = (*_usual_checks(view, policy), *_neighbour_checks(neighbours))
    found += [each for each in usual if each.name not in topics]
    return in_order(found)


def written_owner(fleet: Fleet, policy: Policy) -> OwnerKind | None:
    """Return what kind of owner gets a change in its own object, as a person lets it; None: none does."""
    owner = fleet.owner.template if fleet.owner else None
    lets = policy.ownership is Ownership.APPLY and owner is not None and owner.kind in WRITTEN
    return owner.kind if owner is not None and lets else None


def _written_field(fleet: Fleet) -> Check:
    owner = fleet.owner.name if fleet.owner else ""
    blocked = find_owner_rollout_blocker(fleet)
    if blocked is not None and blocked.reason is Reason.OWNED_BY_CONTROLLER and _rolls_itself(fleet):
        return failure(blocked, names_of(fleet))
    text = f"a flag is changed in {owner} where that has it at one place: only a plan shows whether it has"
    return Check(Topic.OWNER, Result.UNKNOWN, text)


def _rolls_itself(fleet: Fleet) -> bool:
    """Return whether an owner replaces the replicas itself once its object has another value."""
    owner = fleet.owner.template if fleet.owner else None
    return owner is not None and owner.kind is not OwnerKind.VLLM_RUNTIME


def in_order(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return checks in the order of the report."""
    order = list(Topic)
    return tuple(sorted(checks, key=lambda each: order.index(each.name)))


def _engine_checks(view: View, policy: Policy, names: Mapping[str, str]) -> Iterator[Check]:
    found = view.workload(policy.target)
    if isinstance(found, Blocked):
        yield _engine_fault(found, view, policy, names)
        text = "no flag can be changed of an engine that is not recognised"
        yield Check(Topic.LEVERS, Result.UNKNOWN, text)
        return
    version = found.engine.version
    shown = f"{found.engine.profile.name} {version}" if version else f"{found.engine.profile.name}"
    oldest = found.engine.profile.releases[0]
    note = "" if version else f", of no release that is known: the image's tag names none from {oldest} on"
    yield Check(Topic.ENGINE, Result.PASS, f"container {found.container.get('name')} runs {shown}{note}")
    yield _levers(found, policy, names)
    yield _end(found)


def _engine_fault(why: Blocked, view: View, policy: Policy, names: Mapping[str, str]) -> Check:
    """Return the check of an engine not recognised: to name it helps where there are args, and no command."""
    found = failure(why, names, Topic.ENGINE)
    named = policy.target.container
    meant = [each for each in containers_of(view.template) if not named or each.get("name") == named]
    hidden = bool(meant) and all(each.get("command") or not each.get("args") for each in meant)
    if why.reason is not Reason.ENGINE_UNRECOGNISED or not hidden:
        return found
    text = (
        "write what starts the engine into command itself, as [vllm, serve, MODEL], and its flags into args"
    )
    return replace(found, fix=text, risk=UNDRAINED)


SAMPLES: Mapping[Knob, tuple[float | int, float | int]] = MappingProxyType(
    {Knob.WATERMARK: (0.03, 0.04), Knob.GPU_MEMORY_UTILIZATION: (0.87, 0.88)}
)
"""Two values that each lever may have: one of them is not the present one. Others take whole numbers."""
_WHOLE = (17, 18)
_SWITCHES = frozenset({Knob.PREFIX_CACHING, Knob.CHUNKED_PREFILL})


def _levers(workload: Workload, policy: Policy, names: Mapping[str, str]) -> Check:
    """Return whether one of the levers can be moved at least: its flag is where it can be edited."""
    faults: list[Blocked] = []
    free: list[str] = []
    for lever in policy.levers:
        fault = _lever_fault(workload, lever.knob)
        given = workload.value_of(lever.knob)
        if fault is None:
            free.append(f"{lever.knob} ({'not given' if given is None else given})")
        else:
            faults.append(Blocked(fault.reason, f"{lever.knob} cannot be set: {fault.message}"))
    free += ["replicas"] if policy.scale_out else []
    free += ["the revision before"] if policy.rollback.is_allowed else []
    if not free and faults:
        whole = "; ".join(each.message for each in faults)
        return failure(Blocked(faults[0].reason, whole), names, Topic.LEVERS)
    if not free:
        text = "spec.levers names none, so that nothing can be changed"
        return failure(Blocked(Reason.LEVER_NOT_ALLOWED, text), names, Topic.LEVERS)
    left_out = "".join(f"; {each.message}" for each in faults)
    return Check(Topic.LEVERS, Result.PASS, f"can be set: {', '.join(free)}{left_out}")


def _lever_fault(workload: Workload, knob: Knob) -> Blocked | None:
    """Return why a knob cannot be given another value, or None."""
    values = (not workload.has_on(knob),) if knob in _SWITCHES else SAMPLES.get(knob, _WHOLE)
    for value in values:
        plan = plan_of(workload, Assignment(knob, value, Reason.SETTING_ADJUSTED, ""), 0)
        if not isinstance(plan, Blocked):
            return None
        if plan.reason is not Reason.CAP_WITHOUT_EFFECT:
            return plan
    return None


def _end(workload: Workload) -> Check:
    """Return what becomes of requests whose drain times out; it keeps nothing from beginning."""
    text, flag = end_of_requests(workload), workload.engine.profile.flag(Knob.SHUTDOWN_TIMEOUT)
    held = "until then a replica whose drain times out goes back into rotation (onDrainTimeout: Hold)"
    if flag is None or workload.engine.presence(flag) is not Presence.PRESENT:
        return Check(Topic.LAST_REQUESTS, Result.PASS, text, f"a newer engine can finish them; {held}")
    if workload.value_of(Knob.SHUTDOWN_TIMEOUT):
        return Check(Topic.LAST_REQUESTS, Result.PASS, text)
    fix = f"give the engine {flag.name}, and a longer terminationGracePeriodSeconds; {held}"
    return Check(Topic.LAST_REQUESTS, Result.PASS, text, fix, UNDRAINED)


def _follows(why: Blocked, fleet: Fleet) -> bool:
    """Return whether a reason only says again that nothing leads requests to pods, or that there are none."""
    way = fleet.rotation.orphan or fleet.rotation.relabel
    is_led = bool(fleet.rotation.services or (way and way.keys))
    if why.reason is Reason.ROTATION_LABEL_WITHOUT_EFFECT:
        return not is_led
    return why.reason is Reason.TARGET_NOT_SETTLED and (not is_led or fleet.replicas < 1)


def _front(fleet: Fleet, names: Mapping[str, str]) -> Check:
    way = fleet.rotation.orphan or fleet.rotation.relabel
    leading = [f"Service {name}" for name in fleet.rotation.services]
    for front in way.fronts if way else ():
        labels = ",".join(f"{key}={value}" for key, value in sorted(front.selector.items()))
        leading.append(f"{front.name} by {labels}")
    if leading:
        text = f"{' and '.join(leading)} {'lead' if leading[1:] else 'leads'} requests to the pods"
        return Check(Topic.FRONT, Result.PASS, text)
    return Check(
        Topic.FRONT,
        Result.FAIL,
        "no Service, InferencePool or known router leads requests to the pods",
        f"make a Service in namespace {names['namespace']} that selects the pods, or name what your router "
        "selects by in spec.rollout.routers",
        "a Service that selects the pods may send them requests at once",
        Reason.ROTATION_LABEL_WITHOUT_EFFECT,
    )


def _usual_checks(view: View, policy: Policy) -> Iterator[Check]:
    """Yield what is said of a target where nothing is wrong with it."""
    fleet = view.fleet
    yield _drain(fleet)
    walk = " (RollingUpdate while a run replaces replicas, put back after it)"
    text = (
        f"strategy is {fleet.strategy}{walk if fleet.strategy != ROLLING and not fleet.is_stateful else ''}"
    )
    yield Check(Topic.STRATEGY, Result.PASS, text)
    owner = fleet.owner.name if fleet.owner else "nobody else"
    given = "gives way (spec.ownership: Apply)" if fleet.owner else "is known to apply the pod template"
    yield Check(Topic.OWNER, Result.PASS, f"{owner} {given}")
    ready, desired = fleet.ready, fleet.replicas
    numbers = {"ready": ready, "replicas": desired}
    yield Check(Topic.REPLICAS, Result.PASS, f"{ready} of {desired} replicas are Ready", figures=numbers)
    yield Check(Topic.ROLLOUT, Result.PASS, "the rollout is at rest, and no other run has claimed it")
    yield _start(fleet, policy)
    yield _port(fleet)


def describe_run(check: Check, resource: str, run: Run | None) -> Check:
    """Return what is said of the rollout where the target's own resource has a run open: the run moves it."""
    if run is None or check.name is not Topic.ROLLOUT or check.result is not Result.PASS:
        return check
    return replace(check, saw=f"run {run.id} of KVRemediation {resource} is open: it moves the rollout")


def _port(fleet: Fleet) -> Check:
    """Return where replicas are asked for their requests while they drain."""
    ranks = sorted({port for pod in fleet.live for port in pod.engine_ports})
    if ranks:
        text = f"each replica is asked for its metrics at ports {', '.join(map(str, ranks))}, an engine each"
        return Check(Topic.PORT, Result.PASS, text, figures={"port": ranks[0]})
    ports = {pod.port for pod in fleet.live if pod.port is not None}
    declared = sorted({port for pod in fleet.live for port in pod.ports})
    several = f"; several are declared: {', '.join(map(str, declared))}" if len(declared) > 1 else ""
    if len(ports) == 1:
        port = ports.pop()
        text = f"each replica is asked for its metrics at port {port}{several}"
        fix = (
            "if the engine serves at another: name it in spec.targetRef.port; where each leads to an "
            "engine of its own: list them in spec.targetRef.ports"
        )
        return Check(Topic.PORT, Result.PASS, text, fix if several else "", figures={"port": port})
    if not ports:
        text = (
            "nothing shows where replicas serve metrics, so the operator's own port counts (8000 by default)"
        )
        fix = "if they serve elsewhere: name it in spec.targetRef.port of a new resource"
        return Check(Topic.PORT, Result.PASS, f"{text}{several}", fix, figures={"port": None})
    text = f"replicas serve their metrics at several ports: {', '.join(map(str, sorted(ports)))}"
    return Check(Topic.PORT, Result.PASS, text, figures={"port": None})


def labels_that_change(keys: Sequence[str]) -> str:
    """Return which labels of a released replica change, with the verb: `labels app and tier change`."""
    return f"labels {' and '.join(keys)} change" if keys[1:] else f"label {keys[0]} changes"


def _drain(fleet: Fleet) -> Check:
    rotation = fleet.rotation
    if rotation.orphan is not None and rotation.orphan.keys:
        change = labels_that_change(rotation.orphan.keys)
        text = f"a replica is released from its ReplicaSet, then its {change} (rotation: Orphan)"
        return Check(Topic.DRAIN, Result.PASS, text)
    if rotation.relabel is not None and rotation.relabel.keys:
        text = f"label {', '.join(rotation.relabel.keys)} of a replica changes, and nobody takes its place"
        return Check(Topic.DRAIN, Result.PASS, text)
    if not rotation.services:
        return Check(Topic.DRAIN, Result.UNKNOWN, "it follows from what leads requests to the pods")
    text = f"label {rotation.label}={rotation.draining} takes a replica out of rotation (rotation: Label)"
    return Check(Topic.DRAIN, Result.PASS, text)


def _start(fleet: Fleet, policy: Policy) -> Check:
    deadline = fleet.fields.progress_deadline_seconds
    limit = start_limit(deadline, policy.rollout.start_timeout, fleet.live)
    numbers = {"limitSeconds": limit.total_seconds()}
    text = f"a new replica may take {limit.total_seconds() / 60:.3g} min to become Ready"
    if policy.rollout.start_timeout is not None:
        return Check(Topic.START, Result.PASS, text, figures=numbers)
    fix = "if pulling the image and loading the weights may take longer: set spec.rollout.startTimeout"
    return Check(Topic.START, Result.PASS, text, fix, figures=numbers)


def _neighbour_checks(neighbours: Neighbours | str) -> Iterator[Check]:
    if isinstance(neighbours, str):
        yield Check(Topic.AUTOSCALER, Result.UNKNOWN, neighbours)
        yield Check(Topic.DISRUPTION_BUDGET, Result.UNKNOWN, neighbours)
        return
    said = list(remarks(neighbours))
    scaled = [each for each in said if not each.startswith("PodDisruptionBudget")]
    budgets = [each for each in said if each.startswith("PodDisruptionBudget")]
    for topic, lines in ((Topic.AUTOSCALER, scaled), (Topic.DISRUPTION_BUDGET, budgets)):
        result = Result.PASS if lines else Result.NOT_NEEDED
        yield Check(topic, result, "; ".join(lines) or f"there is no {topic} of the pods")


def metrics_checks(
    diagnosis: Diagnosis, fleet: Fleet, policy: Policy, names: Mapping[str, str], now: datetime
) -> tuple[Check, ...]:
    """Return what a look at a target's metrics says of the metrics, and of its nodes where they are to blame.

    A source that did not answer may answer the next time, and a replica that has just started may not have
    been scraped for long enough: that is not known, and no failure.
    """
    if not isinstance(diagnosis, Inconclusive) or Trait.NO_METRICS not in diagnosis.reason.traits:
        text = f"every signal that was asked for has fresh values of {len(fleet.live)} replicas"
        return (Check(Topic.METRICS, Result.PASS, text),)
    found = failure(Blocked(diagnosis.reason, diagnosis.message), names, Topic.METRICS)
    if diagnosis.reason is Reason.SOURCE_UNAVAILABLE:
        return (replace(found, result=Result.UNKNOWN),)
    if diagnosis.reason is Reason.NODE_HEALTH_UNKNOWN:
        return (replace(found, name=Topic.NODE_HEALTH),)
    begins = max((pod.ready_at for pod in fleet.live if pod.ready_at), default=None)
    asked = policy.windows.trigger + policy.windows.hold
    if begins is None or now - begins >= asked:
        return (found,)
    age, full = (now - begins).total_seconds(), begins + asked
    text = f"a replica is Ready for {age:.0f} s of the {asked.total_seconds():.0f} s that a look goes back"
    command = f"kvmedic doctor {typed_place(place_of(fleet.kind, fleet.name))} -n {fleet.namespace}"
    fix = f"after {full + timedelta(minutes=1):%H:%M} UTC: {command}"
    return (replace(found, result=Result.UNKNOWN, saw=f"{text}: {found.saw}", fix=fix, risk=""),)


def node_health_check(vitals: Mapping[str, Vitals], policy: Policy) -> Check:
    """Return of how many replicas the health of their GPUs is known; by default that stops nothing."""
    known = sum(not each.list_unknown() for each in vitals.values())
    numbers = {"known": known, "replicas": len(vitals)}
    text = (
        f"the health of GPUs is known of {known} of {len(vitals)} replicas (nodeHealth: {policy.node_health})"
    )
    if known == len(vitals):
        return Check(Topic.NODE_HEALTH, Result.PASS, text, figures=numbers)
    fix = (
        "let the DCGM exporter report what is missing, or nvidia-smi: docs/howto/node-health-without-dcgm.md"
    )
    result = Result.FAIL if policy.node_health is NodeHealth.REQUIRED else Result.PASS
    return Check(Topic.NODE_HEALTH, result, text, fix, "none for the fleet", figures=numbers)


def spare_check(seen: Finding, fleet: Fleet, policy: Policy, names: Mapping[str, str]) -> Check:
    """Return whether one replica more finds a place, or the fleet may go one short; the unknown is tried."""
    wish = policy.rollout.spare
    if fleet.is_stateful:
        return _ordinals_check(fleet, wish, names)
    none = way_without_spare(fleet, None, "spec.rollout.spare is None") if wish is Spare.NONE else None
    way = none or weigh_room(seen, policy)
    if isinstance(way, Blocked) and wish is Spare.BEST_EFFORT:
        way = way_without_spare(fleet, None, seen.message)
    match way:
        case Blocked():
            return _no_way_check(way, fleet, names)
        case Short(remark) if wish is Spare.BEST_EFFORT:
            text = f"{remark}, if the others carry the load, which is computed right before"
            return Check(Topic.SPARE, Result.UNKNOWN, text, is_decisive=False)
        case Short(remark):
            return Check(Topic.SPARE, Result.PASS, remark)
        case Beside(remark) if isinstance(seen, RoomUnknown):
            return Check(Topic.SPARE, Result.UNKNOWN, remark, is_decisive=False)
        case Beside(remark):
            return Check(Topic.SPARE, Result.PASS, remark or seen.message)


def _ordinals_check(fleet: Fleet, wish: Spare, names: Mapping[str, str]) -> Check:
    """Return whether a StatefulSet may go one short, as it never has a spare."""
    way = refuse_without_spare(fleet)
    if wish is not Spare.REQUIRED:
        found = way_without_spare(fleet, None, no_spare_of(fleet))
        if isinstance(found, Short):
            text = f"{found.remark}, if the others carry the load, which is computed right before"
            sure = wish is Spare.NONE
            result = Result.PASS if sure else Result.UNKNOWN
            return Check(Topic.SPARE, result, found.remark if sure else text, is_decisive=sure)
        return _no_way_check(found, fleet, names)
    return failure(way, names)


def _no_way_check(why: Blocked, fleet: Fleet, names: Mapping[str, str]) -> Check:
    """Return the check that fails; where it is the only replica, going one short is no way out."""
    failed = failure(why, names)
    if why.reason is not Reason.SPARE_NEEDED:
        return failed
    if fleet.is_stateful:
        fix, risk = second_replica(names)
        return replace(failed, fix=fix, risk=risk)
    fix = "set spec.rollout.spare: Required, and leave room for a replica more"
    return replace(failed, fix=fix, risk="a spare takes as many devices as a replica while there is one")


def namespace_check(closed: Blocked) -> Check:
    """Return the check of a namespace whose fleets may not be changed: what it lacks, and the command."""
    last = closed.message.rpartition(": ")[2]
    fix = last if last.startswith("kubectl ") else ""
    return Check(Topic.NAMESPACE, Result.FAIL, closed.message, fix=fix, reason=closed.reason)


def rights_check(lacking: Sequence[object] | str, names: Mapping[str, str]) -> Check:
    """Return whether the operator may do all that a change needs.

    Args:
        lacking: what it may not; a text says why that is not known.
        names: what fixes are filled in with.
    """
    if isinstance(lacking, str):
        return Check(Topic.RIGHTS, Result.UNKNOWN, lacking, f"as an administrator: {_can_i(names)}", LOOKS)
    if not lacking:
        return Check(Topic.RIGHTS, Result.PASS, "the operator may do all that a change needs")
    listed = ", ".join(map(str, lacking))
    fix = f"install the chart's roles for namespace {names['namespace']} (watchNamespaces); {_can_i(names)}"
    text = f"the operator may not {listed}"
    return Check(
        Topic.RIGHTS, Result.FAIL, text, fix, "none for the fleet", figures={"lacking": len(lacking)}
    )


def _can_i(names: Mapping[str, str]) -> str:
    account = f"system:serviceaccount:{names['operator']}:kvmedic"
    return f"kubectl auth can-i --list -n {names['namespace']} --as={account}"
