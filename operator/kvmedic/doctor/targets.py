"""Which workloads of documents are looked at, and what is said of the others.

Where no workload seems to start an engine, the only one there counts: an image need not say what it starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from kvmedic.doctor.examine import starts_engine, targets_in
from kvmedic.engines import ENGINES
from kvmedic.kube.objects import WORKLOADS, JsonObject, name_of, pod_template, section
from kvmedic.manifests.custom_resources import places_of_flags
from kvmedic.manifests.documents import containers_of
from kvmedic.manifests.invocation import NotAnEngine, invocation_of
from kvmedic.manifests.refusal import Refusal
from kvmedic.model.edits import containers_of as template_containers
from kvmedic.rollout.gates import place_of, typed_place

CHANGED = "kvmedic changes Deployments, StatefulSets and LeaderWorkerSets only"
"""What is said of an engine that an object of another kind starts."""


class NoTargetError(Exception):
    """Documents have no workload to look at; the message says why, and what to do."""

    def __init__(self, message: str, *, is_known: bool = False) -> None:
        super().__init__(message)
        self.is_known = is_known
        """An engine is there, and kvmedic does not change what starts it."""


def find_targets(documents: Sequence[JsonObject]) -> tuple[str, ...]:
    """Return the workloads to look at, by `place_of`.

    Raises:
        NoTargetError: there is none, or a person has to choose.
    """
    if found := targets_in(documents):
        return found
    if left := tuple(tell_unchanged(documents)):
        raise NoTargetError("; ".join(left), is_known=True)
    workloads = _choose_from(documents)
    places = tuple(place_of(each["kind"], name_of(each)) for each in workloads)
    if len(places) == 1:
        return places
    if places:
        listed = ", ".join(map(typed_place, places))
        raise NoTargetError(f"no workload starts a known engine; name the one that does: {listed}")
    if not documents:
        raise NoTargetError("it has no Kubernetes object: each needs apiVersion, kind and metadata.name")
    raise NoTargetError("no workload starts a known engine; name one as deploy/NAME")


def _choose_from(documents: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the workloads that may start an engine although nothing says so.

    Raises:
        NoTargetError: each of them starts another engine, or is none.
    """
    others = list(_others(documents))
    left_out = [id(each) for each, _ in others]
    found = [each for each in documents if each.get("kind") in WORKLOADS and id(each) not in left_out]
    if others and not found:
        raise NoTargetError("; ".join(told for _, told in others), is_known=True)
    return found


def tell_unchanged(documents: Iterable[JsonObject]) -> Iterator[str]:
    """Yield, of each object that starts an engine and is not changed, who starts it and where flags are set.

    What a controller made of another object is left out: that object counts.
    """
    for each in documents:
        if each.get("kind") in WORKLOADS or section(each, "metadata").get("ownerReferences"):
            continue
        who = f"{each.get('kind')}/{name_of(each)}"
        places = tuple(places_of_flags(each))
        if places:
            yield f"{CHANGED}, not {who}: {places[0]}"
        elif name := _engine_in(each):
            hint = "set its flags in the manifest: kvmedic flags set --help"
            yield f"{CHANGED}, not {who}, whose container {name} starts the engine: {hint}"


def tell_others(documents: Iterable[JsonObject]) -> Iterator[str]:
    """Yield, of each workload that starts an engine of which no flag is known, its name and that engine's."""
    yield from (told for _, told in _others(documents))


def _others(documents: Iterable[JsonObject]) -> Iterator[tuple[JsonObject, str]]:
    for each in documents:
        if each.get("kind") not in WORKLOADS or starts_engine(each):
            continue
        seen = (
            (str(spec.get("name")), profile, invocation_of(spec, profile))
            for spec in template_containers(pod_template(each))
            for profile in ENGINES
        )
        told = (
            f"{each['kind']}/{name_of(each)}: container {name}: {how.explain(profile.name)}"
            for name, profile, how in seen
            if isinstance(how, NotAnEngine) and how.other
        )
        if first := next(told, ""):
            yield each, first


def _engine_in(document: JsonObject) -> str:
    """Return the name of an object's first container that starts a known engine; empty: none does."""
    found = containers_of(json.dumps(document))
    names = (
        each.name
        for each in (() if isinstance(found, Refusal) else found)
        if not all(isinstance(invocation_of(each.data, profile), NotAnEngine) for profile in ENGINES)
    )
    return next(names, "")
