"""From advice to a plan: which token of which container, and its exact inverse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvmedic.manifests.engine_file import Configuration, configuration_at, edit_file
from kvmedic.manifests.flags import AlreadySet, FlagsView, edit, parsed_of, read_flags, setting_of
from kvmedic.manifests.flags import Setting as FlagSetting
from kvmedic.manifests.invocation import version_of
from kvmedic.manifests.refusal import Budget, Refusal, RefusalReason
from kvmedic.model.config_edits import Sight
from kvmedic.model.edits import TokenEdit, container_at, containers_of
from kvmedic.model.engine import Engine, EngineProfile, Knob, Scalar
from kvmedic.model.fleet import ObjectRef, template_hash
from kvmedic.model.plan import ConfigStep, FlagStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Adviser, Assignment, Beyond, Evidence, NoChange, Setting

FIXES_THE_POOL = (Knob.NUM_GPU_BLOCKS_OVERRIDE, Knob.KV_CACHE_MEMORY_BYTES)
"""Knobs with which the cache's size does not depend on what a step takes."""


UNKNOWN_ENGINE = frozenset({RefusalReason.NO_ENGINE, RefusalReason.SEVERAL_ENGINES})
NOT_IN_ENGINE = frozenset({RefusalReason.NOT_IN_VERSION, RefusalReason.VERSION_UNKNOWN})


@dataclass(frozen=True, slots=True)
class Fault:
    """Why no plan can be made."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Workload:
    """The target's pod template and the engine that runs in it.

    The template may hold secrets: it is never printed and never stored.
    """

    target: ObjectRef
    target_uid: str
    template: Mapping[str, object]
    container_index: int
    engine: Engine
    flags: FlagsView
    file: Configuration | Refusal | None = None
    """Its configuration file, or why that cannot be seen; None: it reads none, or nobody looked."""

    @property
    def container(self) -> Mapping[str, object]:
        """Return the engine's container."""
        return container_at(self.template, self.container_index) or {}

    def given(self, knob: Knob) -> Scalar:
        """Return the value that the command line gives a knob; None where it gives none."""
        flag = self.engine.profile.flag(knob)
        return None if flag is None else self.flags.values().get(flag.dest)

    def has_on(self, knob: Knob) -> bool | None:
        """Return whether a switch is on, or None where that is not known."""
        flag = self.engine.profile.flag(knob)
        return None if flag is None else self.engine.has_on(flag, self.given(knob))

    def fixes_the_pool(self) -> tuple[Knob, ...]:
        """Return the knobs that are given and size the KV cache, whatever memory there is."""
        return tuple(knob for knob in FIXES_THE_POOL if self.given(knob) is not None)

    def longest_request(self) -> int | None:
        """Return the tokens of a request, at most, as the command line gives it; None where it does not."""
        given = self.given(Knob.MAX_MODEL_LEN)
        return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None

    def knobs(self) -> dict[Knob, Scalar] | None:
        """Return every knob that is given; None where a file that was not read may give more."""
        if self.flags.config is not None:
            return None
        return {given.flag.knob: given.value for given in self.flags.flags}

    def given_flags(self) -> dict[str, str]:
        """Return every knob that the command line gives, by knob: never another flag, never a secret."""
        return {str(given.flag.knob): str(given.value) for given in self.flags.flags}


def workload_of(
    target: ObjectRef,
    uid: str,
    template: Mapping[str, object],
    container: str | None,
    engines: Sequence[EngineProfile | Engine],
) -> Workload | Fault:
    """Return the engine in a pod template, or why it cannot be told.

    Args:
        target: the object that has the template.
        uid: its uid.
        template: its `spec.template`.
        container: the engine's container by name; None: the only one that runs a known engine.
        engines: the engines that are known. Of a mere profile the image's tag tells the version.
    """
    found: list[Workload] = []
    doubts: list[Refusal] = []
    budget = Budget()
    for index, spec in enumerate(containers_of(template)):
        if container is None or spec.get("name") == container:
            for known in engines:
                engine = known if isinstance(known, Engine) else Engine(known, version_of(spec, known))
                flags = read_flags(spec, engine, budget=budget)
                if isinstance(flags, Refusal):
                    doubts.append(flags)
                else:
                    found.append(Workload(target, uid, template, index, engine, flags))
    if len(found) == 1:
        return found[0]
    return _not_one(found, doubts, container)


def with_configuration(found: Workload | Fault, maps: Mapping[str, Sight]) -> Workload | Fault:
    """Return a workload with what its engine's configuration file gives.

    Args:
        found: as its pod template tells.
        maps: the ConfigMaps that were read, by name.
    """
    path = found.flags.config if isinstance(found, Workload) else None
    if not isinstance(found, Workload) or path is None:
        return found
    file = configuration_at(path, found.template, found.container, found.engine, maps)
    if isinstance(file, Refusal):
        return replace(found, file=file)
    flags = read_flags(found.container, found.engine, file.read.parsed)
    return found if isinstance(flags, Refusal) else replace(found, file=file, flags=flags)


def with_template(workload: Workload, template: Mapping[str, object]) -> Workload | Fault:
    """Return a workload whose pod template is another one, read anew, with the same configuration file."""
    container, file = container_at(template, workload.container_index) or {}, workload.file
    parsed = file.read.parsed if isinstance(file, Configuration) else None
    flags = read_flags(container, workload.engine, parsed)
    return (
        fault_of(flags) if isinstance(flags, Refusal) else replace(workload, template=template, flags=flags)
    )


def _not_one(found: list[Workload], doubts: list[Refusal], container: str | None) -> Fault:
    if found:
        names = ", ".join(str(workload.container.get("name")) for workload in found)
        return Fault(
            Reason.ENGINE_UNRECOGNISED,
            f"containers {names} run an engine: make a resource that names one in spec.targetRef.container",
        )
    if not doubts:
        return Fault(
            Reason.TARGET_NOT_FOUND,
            f"the target has no container {container}: "
            "correct its template, or make a resource that names another in spec.targetRef.container",
        )
    telling = next((doubt for doubt in doubts if doubt.reason not in UNKNOWN_ENGINE), None)
    return fault_of(telling) if telling else _refuse_unrecognised(doubts)


def _refuse_unrecognised(doubts: Sequence[Refusal]) -> Fault:
    said = "; ".join(dict.fromkeys(doubt.message for doubt in doubts))
    return Fault(
        Reason.ENGINE_UNRECOGNISED,
        f"{said}: start the engine in command or args, or make a resource for the Deployment that runs one",
    )


def proposal(
    workload: Workload, advise: Adviser, evidence: Evidence, known: Setting, generation: int
) -> Plan | Beyond | NoChange:
    """Return the plan that advice leads to, or why there is none; advice that is no matter of one setting.

    A lever that this engine or its command line does not let be set is told to the adviser, which may
    know another one.
    """
    for _ in range(len(known.levers) + 1):
        advice = advise(evidence, known)
        if isinstance(advice, NoChange | Beyond):
            return advice
        plan = plan_of(workload, advice, generation)
        if isinstance(plan, Plan):
            return plan
        why = NoChange(plan.reason, f"{advice.knob} {advice.value} cannot be set: {plan.message}")
        known = replace(known, refused={**known.refused, advice.knob: why})
    return why


def plan_of(workload: Workload, advice: Assignment, generation: int) -> Plan | Fault:
    """Return the plan that carries out one piece of advice, or why it cannot be carried out."""
    step = _step(workload, advice)
    if isinstance(step, Fault):
        return step
    return Plan(
        steps=(step,),
        target_uid=workload.target_uid,
        template=step.before_template,
        spec_generation=generation,
        reason=advice.reason,
        message=advice.message,
    )


def _step(workload: Workload, advice: Assignment) -> FlagStep | ConfigStep | Fault:
    flag = workload.engine.profile.flag(advice.knob)
    if flag is None:
        return Fault(Reason.FLAG_UNKNOWN_TO_ENGINE, f"{workload.engine.profile.name} has no {advice.knob}")
    wanted = setting_of(flag, advice.value, workload.engine)
    if isinstance(wanted, Refusal):
        return fault_of(wanted)
    line, file = parsed_of(workload.container, workload.engine), workload.file
    if isinstance(file, Configuration) and not isinstance(line, Refusal):
        given = file.read.decides(flag, line)
        if given is not None:
            same = given.value == wanted.value
            return _already(wanted) if same else _config_step(workload, file, wanted, advice)
    return _flag_step(workload, wanted, advice)


def _already(wanted: FlagSetting) -> Fault:
    return Fault(Reason.CAP_WITHOUT_EFFECT, f"{wanted.flag.name} is {wanted.text} already")


def _config_step(
    workload: Workload, file: Configuration, wanted: FlagSetting, advice: Assignment
) -> ConfigStep | Fault:
    change = edit_file(file, wanted, workload.engine, workload.container, workload.target_uid)
    if isinstance(change, Refusal):
        return fault_of(change)
    return ConfigStep(
        target=workload.target,
        container=str(workload.container.get("name")),
        knob=advice.knob,
        edit=change.reference,
        file=change.file,
        before=as_written(workload.given(advice.knob)),
        after=wanted.text,
        before_template=template_hash(workload.template),
        after_template=template_hash(change.reference.apply(workload.template)),
        reason=advice.reason,
    )


def _flag_step(workload: Workload, wanted: FlagSetting, advice: Assignment) -> FlagStep | Fault:
    file = workload.file
    parsed = file.read.parsed if isinstance(file, Configuration) else None
    change = edit(workload.container, workload.container_index, wanted, workload.engine, parsed)
    match change:
        case Refusal(RefusalReason.IN_CONFIG_FILE) if isinstance(file, Refusal):
            return fault_of(Refusal(file.reason, f"{wanted.flag.dest} may be in a file: {file.message}"))
        case Refusal():
            return fault_of(change)
        case AlreadySet():
            return _already(wanted)
        case TokenEdit():
            before = workload.given(advice.knob)
            return FlagStep(
                target=workload.target,
                knob=advice.knob,
                edit=change,
                before=None if before is None else as_written(before),
                after=wanted.text,
                before_template=template_hash(workload.template),
                after_template=template_hash(change.apply(workload.template)),
                reason=advice.reason,
            )


def as_written(value: Scalar) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def fault_of(refusal: Refusal) -> Fault:
    """Return why no plan can be made where an edit was refused."""
    if refusal.reason in UNKNOWN_ENGINE:
        return Fault(Reason.ENGINE_UNRECOGNISED, refusal.message)
    if refusal.reason in NOT_IN_ENGINE:
        return Fault(Reason.FLAG_UNKNOWN_TO_ENGINE, refusal.message)
    return Fault(Reason.FLAG_NOT_EDITABLE, refusal.message)
