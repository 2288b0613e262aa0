"""A Deployment as one look read it, and the engine in each of its pod templates.

Pod templates and ConfigMaps may hold secrets: they are never printed and never stored.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kvmedic.engines import profiles_for
from kvmedic.manifests.argument_parser import Given, Parsed
from kvmedic.manifests.engine_file import Configuration, configuration_at
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import FlagsView, flags_in, parse_line
from kvmedic.manifests.invocation import version_of
from kvmedic.manifests.size_limits import Budget
from kvmedic.model.config_edits import Sight
from kvmedic.model.edits import container_at, containers_of
from kvmedic.model.engine import Engine, EngineProfile, Knob, Scalar
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, ObjectRef, template_hash
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import TargetRef

FIXES_THE_POOL = (Knob.NUM_GPU_BLOCKS_OVERRIDE, Knob.KV_CACHE_MEMORY_BYTES)
"""Knobs with which the cache's size does not depend on what a step takes."""
DECIDES_ALL = frozenset({Knob.KV_CACHE_DTYPE})
"""Knobs without whose value nothing of a fleet is judged: what compresses a cache shows in them."""
UNKNOWN_ENGINE = frozenset({ErrorReason.NO_ENGINE, ErrorReason.SEVERAL_ENGINES})
NOT_IN_ENGINE = frozenset({ErrorReason.NOT_IN_VERSION, ErrorReason.VERSION_UNKNOWN})


@dataclass(frozen=True, slots=True)
class EngineLine:
    """The one engine of a pod template, and its command line as that engine reads it."""

    template: Mapping[str, object] = field(repr=False)
    container_index: int
    engine: Engine
    line: Parsed = field(repr=False)
    file: Configuration | ManifestError | None = field(default=None, repr=False)
    """Its configuration file, or why that cannot be seen; None: it reads none, or nobody looked."""

    @property
    def container(self) -> Mapping[str, object]:
        """Return the engine's container."""
        return container_at(self.template, self.container_index) or {}

    @property
    def in_file(self) -> Parsed | None:
        """Return what its configuration file gives; None where there is none that was read."""
        return self.file.read.parsed if isinstance(self.file, Configuration) else None

    def find_deciding_use(self, dest: str) -> Given | None:
        """Return what decides an option: the command line before the file; None where neither gives it."""
        return self.line.last(dest) or (self.in_file.last(dest) if self.in_file else None)

    def value(self, dest: str) -> Scalar:
        """Return an option's value; None where it is not given."""
        given = self.find_deciding_use(dest)
        return None if given is None else given.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(EngineLine):
    """The engine of a target, with the values that its knobs are given."""

    target: ObjectRef
    target_uid: str
    flags: FlagsView

    def value_of(self, knob: Knob) -> Scalar:
        """Return the value that the command line gives a knob; None where it gives none."""
        flag = self.engine.profile.flag(knob)
        return None if flag is None else self.flags.values().get(flag.dest)

    def unknown_knobs(self) -> dict[Knob, ManifestError]:
        """Return the knobs that variables from elsewhere give, with where each value comes from."""
        return {each.flag.knob: each.why for each in self.flags.unknown}

    def gives(self, knob: Knob) -> bool:
        """Return whether the command line gives a knob, whether its value is known or not."""
        return self.value_of(knob) is not None or knob in self.unknown_knobs()

    def has_on(self, knob: Knob) -> bool | None:
        """Return whether a switch is on, or None where that is not known."""
        flag = self.engine.profile.flag(knob)
        if flag is None or knob in self.unknown_knobs():
            return None
        return self.engine.has_on(flag, self.value_of(knob))

    def fixes_the_pool(self) -> tuple[Knob, ...]:
        """Return the knobs that are given and size the KV cache, whatever memory there is."""
        return tuple(knob for knob in FIXES_THE_POOL if self.gives(knob))

    def longest_request(self) -> int | None:
        """Return the tokens of a request, at most, as the command line gives it; None where it does not."""
        given = self.value_of(Knob.MAX_MODEL_LEN)
        return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None

    def knobs(self) -> dict[Knob, Scalar] | None:
        """Return every knob that is given, None for a value that is not known.

        None where a file that was not read may give more.
        """
        if self.flags.config is not None:
            return None
        known = {given.flag.knob: given.value for given in self.flags.flags}
        return {**known, **dict.fromkeys(self.unknown_knobs())}

    def given_flags(self) -> dict[str, str]:
        """Return every knob with its value as far as it is known: never another flag, never a secret."""
        return {str(given.flag.knob): str(given.value) for given in self.flags.flags}


_Choice: TypeAlias = tuple[int, Engine]
"""A container's place in its template, and an engine that it may run."""


@dataclass(frozen=True, slots=True)
class View:
    """A Deployment with its pods, pod templates and mounted configuration, as one look read them.

    Each pod template is parsed once: what was found is kept with the view and ends with it.
    """

    fleet: Fleet
    template: Mapping[str, object] = field(repr=False)
    """The Deployment's `spec.template`."""
    templates: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    """The pod template of each of its ReplicaSets, by the ReplicaSet's name."""
    config_maps: Mapping[str, Sight] = field(default_factory=dict, repr=False)
    """ConfigMaps that engines read their configuration from, by name, and what these were copied from."""
    _lines: dict[object, EngineLine | Blocked] = field(default_factory=dict, repr=False, compare=False)
    """Command lines as they were parsed, by hash of the template: a view made of this one has them too."""
    _engines: dict[object, EngineLine | Blocked] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The same with what configuration files give, by what was asked: of the templates and ConfigMaps of this
    view alone."""

    def with_fleet(self, fleet: Fleet) -> View:
        """Return the view with another state of its fleet; what was read of its templates stays."""
        made = replace(self, fleet=fleet)
        made._engines.update(self._engines)
        return made

    def engine_line(
        self,
        target: TargetRef,
        replica_set: str = "",
        engines: Sequence[EngineProfile | Engine] = (),
    ) -> EngineLine | Blocked:
        """Return the engine in a pod template and its command line, or why it is not known.

        The template is that of a ReplicaSet (KeyError: there is none of that name); empty: the Deployment's
        own. Of a mere profile in `engines` the image's tag gives the version; empty: all that it may run.
        """
        template = self.templates[replica_set] if replica_set else self.template
        known = engines or profiles_for(target.engine)
        asked = replica_set, target.container, tuple(_name_of(each) for each in known)
        if asked not in self._engines:
            chosen = _choices(template, target.container, known)
            names = tuple(
                (at, each.profile.name, each.profile.launch.images, each.version) for at, each in chosen
            )
            key = template_hash(template), names or target.container
            if key not in self._lines:
                self._lines[key] = _read_line(template, target.container, chosen)
            self._engines[asked] = _with_file(self._lines[key], self.config_maps)
        return self._engines[asked]

    def workload(
        self,
        target: TargetRef,
        replica_set: str = "",
        engines: Sequence[EngineProfile | Engine] = (),
    ) -> Workload | Blocked:
        """Return the same with the values of its knobs."""
        ref = ObjectRef(target.kind, target.name)
        return _as_workload(self.engine_line(target, replica_set, engines), ref, self.fleet.uid)


def workload_of(
    target: ObjectRef,
    uid: str,
    template: Mapping[str, object],
    container: str | None,
    engines: Sequence[EngineProfile | Engine],
    maps: Mapping[str, Sight] | None = None,
) -> Workload | Blocked:
    """Return the engine in a pod template that no look has read, or why it is not known.

    `container` None: the only one that runs a known engine. `maps`: the ConfigMaps that were read, by name;
    None: nobody looked.
    """
    line = _read_line(template, container, _choices(template, container, engines))
    return _as_workload(line if maps is None else _with_file(line, maps), target, uid)


def with_template(workload: Workload, template: Mapping[str, object]) -> Workload | Blocked:
    """Return a workload whose pod template is another one, read anew, with the same configuration file."""
    line = parse_line(container_at(template, workload.container_index) or {}, workload.engine)
    if isinstance(line, ManifestError):
        return explain_manifest_error(line)
    changed = EngineLine(template, workload.container_index, workload.engine, line, workload.file)
    return _as_workload(changed, workload.target, workload.target_uid)


def _name_of(engine: EngineProfile | Engine) -> Hashable:
    """Return what identifies an engine; of a mere profile the image's tag gives the version."""
    if isinstance(engine, Engine):
        return engine.profile.name, engine.profile.launch.images, engine.version
    return engine.name, engine.launch.images


def _choices(
    template: Mapping[str, object], container: str | None, engines: Sequence[EngineProfile | Engine]
) -> tuple[_Choice, ...]:
    return tuple(
        (index, known if isinstance(known, Engine) else Engine(known, version_of(spec, known)))
        for index, spec in enumerate(containers_of(template))
        if container is None or spec.get("name") == container
        for known in engines
    )


def _read_line(
    template: Mapping[str, object], container: str | None, chosen: Sequence[_Choice]
) -> EngineLine | Blocked:
    found: list[EngineLine] = []
    doubts: list[ManifestError] = []
    budget = Budget()
    for index, engine in chosen:
        line = parse_line(container_at(template, index) or {}, engine, budget)
        if isinstance(line, ManifestError):
            doubts.append(line)
        else:
            found.append(EngineLine(template, index, engine, line))
    return found[0] if len(found) == 1 else _not_one(found, doubts, container)


def _with_file(found: EngineLine | Blocked, maps: Mapping[str, Sight]) -> EngineLine | Blocked:
    if isinstance(found, Blocked) or found.line.config is None:
        return found
    file = configuration_at(found.line.config, found.template, found.container, found.engine, maps)
    return replace(found, file=file)


def _as_workload(found: EngineLine | Blocked, target: ObjectRef, uid: str) -> Workload | Blocked:
    if isinstance(found, Blocked):
        return found
    flags = flags_in(found.line, found.engine, found.in_file)
    if whole := next((each for each in flags.unknown if each.flag.knob in DECIDES_ALL), None):
        return explain_manifest_error(whole.why)
    read = found.template, found.container_index, found.engine, found.line
    return Workload(*read, file=found.file, target=target, target_uid=uid, flags=flags)


def _not_one(found: list[EngineLine], doubts: list[ManifestError], container: str | None) -> Blocked:
    if found:
        names = ", ".join(str(each.container.get("name")) for each in found)
        return Blocked(
            Reason.ENGINE_UNRECOGNISED,
            f"containers {names} run an engine: make a resource that names one in spec.targetRef.container",
        )
    if not doubts:
        return Blocked(
            Reason.TARGET_NOT_FOUND,
            f"the target has no container {container}: "
            "correct its template, or make a resource that names another in spec.targetRef.container",
        )
    decisive = [doubt for doubt in doubts if doubt.reason not in UNKNOWN_ENGINE]
    if decisive:
        return explain_manifest_error(min(decisive, key=lambda each: each.reason is ErrorReason.OTHER_ENGINE))
    said = "; ".join(dict.fromkeys(doubt.message for doubt in doubts))
    return Blocked(
        Reason.ENGINE_UNRECOGNISED,
        f"{said}: start the engine in command or args, or name it in spec.targetRef.engine of a new resource "
        "where the image starts it, or make a resource for the Deployment that runs one",
    )


def explain_manifest_error(error: ManifestError) -> Blocked:
    """Return why no plan can be made where an edit was refused."""
    if error.reason is ErrorReason.OTHER_ENGINE:
        return Blocked(Reason.ENGINE_NOT_SUPPORTED, error.message)
    if error.reason in UNKNOWN_ENGINE:
        return Blocked(Reason.ENGINE_UNRECOGNISED, error.message)
    if error.reason in NOT_IN_ENGINE:
        return Blocked(Reason.FLAG_UNKNOWN_TO_ENGINE, error.message)
    return Blocked(Reason.FLAG_NOT_EDITABLE, error.message)
