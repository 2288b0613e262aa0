"""Which workloads of documents are looked at, and what is said of the others.

An image need not say what it starts: then arguments that only the engine takes do, and where no workload has
any, the only one there counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvmedic.doctor.documents import DocumentsError
from kvmedic.doctor.examine import namespace_in, see_documents, starts_engine
from kvmedic.engines import ENGINES
from kvmedic.kube.objects import WORKLOADS, JsonObject, name_of, pod_template, section
from kvmedic.manifests.custom_resources import places_of_flags
from kvmedic.manifests.documents import ManifestContainer, containers_of
from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.invocation import NotAnEngine, invocation_of
from kvmedic.model.edits import containers_of as template_containers
from kvmedic.model.spec import place_of, typed_place
from kvmedic.rollout.owners.rendering import RENDERINGS
from kvmedic.runbooks.workload import Workload

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
    others = {id(each) for each, _ in _others(documents)}
    found = (each for each in documents if each.get("kind") in WORKLOADS and id(each) not in others)
    named = (each for each in found if starts_engine(each) or _is_recognisable(documents, each))
    if seen := tuple(place_of(each["kind"], name_of(each)) for each in named):
        return seen
    if left := tuple(report_unchanged(documents)):
        raise NoTargetError("; ".join(left), is_known=True)
    workloads = _choose_from(documents)
    places = tuple(place_of(each["kind"], name_of(each)) for each in workloads)
    if len(places) == 1:
        return places
    if places:
        listed = ", ".join(map(typed_place, places))
        raise NoTargetError(f"no workload starts a known engine; name the one that does: {listed}")
    if not documents:
        raise NoTargetError(
            "it has no Kubernetes object: each needs apiVersion, kind and metadata.name. Of a chart's values "
            "or a Kustomization give what is rendered: helm template, kubectl kustomize"
        )
    raise NoTargetError(f"no workload starts a known engine: {_message_of_objects(documents)}")


_MOST_NAMED = 3


def _message_of_objects(documents: Sequence[JsonObject]) -> str:
    """Return which objects documents without a workload have, and where their workloads are to be seen."""
    who = [f"{each.get('kind')}/{name_of(each)}" for each in documents]
    more = f" and {len(who) - _MOST_NAMED} more" if len(who) > _MOST_NAMED else ""
    return (
        f"there is only {', '.join(who[:_MOST_NAMED])}{more}. Give what is rendered from it (helm template, "
        "kubectl kustomize), or look in the cluster: kvmedic doctor deploy/NAME -n NAMESPACE"
    )


def _is_recognisable(documents: Sequence[JsonObject], workload: JsonObject) -> bool:
    """Return whether arguments show what an image starts, so that `kvmedic init` names the engine."""
    known = {flag.name for profile in ENGINES for flag in profile.flags}
    given = (
        str(text).partition("=")[0].replace("_", "-")
        for each in template_containers(pod_template(workload))
        if isinstance(args := each.get("args"), list) and not each.get("command")
        for text in args
    )
    if known.isdisjoint(given):
        return False
    place = place_of(workload["kind"], name_of(workload))
    try:
        seen = see_documents(documents, place, namespace_in(documents, place))
    except DocumentsError:
        return False
    return seen is not None and isinstance(seen.view.workload(seen.policy.target), Workload)


def _choose_from(documents: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the workloads that may start an engine although nothing says so.

    Raises:
        NoTargetError: each of them starts another engine, or is none.
    """
    others = list(_others(documents))
    left_out = [id(each) for each, _ in others]
    found = [each for each in documents if each.get("kind") in WORKLOADS and id(each) not in left_out]
    if others and not found:
        raise NoTargetError("; ".join(message for _, message in others), is_known=True)
    return found


def report_unchanged(documents: Iterable[JsonObject]) -> Iterator[str]:
    """Yield, of each object that starts an engine and is not changed, who starts it and where flags are set.

    What a controller made of another object is left out: that object counts.
    """
    for each in documents:
        if each.get("kind") in WORKLOADS or section(each, "metadata").get("ownerReferences"):
            continue
        who = f"{each.get('kind')}/{name_of(each)}"
        containers = _containers_in(each)
        if names := _name_engines(containers):
            yield f"{CHANGED}, not {who}, whose {_message_where_to_set(names)}{_where_rendered(each)}"
        elif other := _other_engine_message(who, (one.data for one in containers)):
            yield other
        elif places := tuple(places_of_flags(each)):
            yield f"{CHANGED}, not {who}: {places[0]}{_where_rendered(each)}"


def _message_where_to_set(names: Sequence[str]) -> str:
    """Return which containers start an engine, and the command that sets their flags in the manifest."""
    typed = "set its flags in the manifest: kvmedic flags set max_num_seqs=N -f FILE"
    if len(names) == 1:
        return f"container {names[0]} starts the engine: {typed}"
    return f"containers {' and '.join(names)} start an engine each: {typed} --container {names[0]}"


def _where_rendered(document: JsonObject) -> str:
    """Return where an object is looked at of whose fields kvmedic writes those that a workload comes from."""
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    if (group, document.get("kind")) not in RENDERINGS:
        return ""
    return "; in a cluster look at the workload that it renders: kvmedic doctor deploy/NAME -n NAMESPACE"


def report_others(documents: Iterable[JsonObject]) -> Iterator[str]:
    """Yield, of each workload that starts an engine of which no flag is known, its name and that engine's."""
    yield from (message for _, message in _others(documents))


def _others(documents: Iterable[JsonObject]) -> Iterator[tuple[JsonObject, str]]:
    for each in documents:
        if each.get("kind") not in WORKLOADS or starts_engine(each):
            continue
        who = f"{each['kind']}/{name_of(each)}"
        if message := _other_engine_message(who, template_containers(pod_template(each))):
            yield each, message


def _other_engine_message(who: str, containers: Iterable[Mapping[str, object]]) -> str:
    """Return which engine of unknown flags the first container starts that starts one; empty: none does."""
    seen = (
        (str(each.get("name")), profile, invocation_of(each, profile))
        for each in containers
        for profile in ENGINES
    )
    messages = (
        f"{who}: container {name}: {how.explain(profile.name)}"
        for name, profile, how in seen
        if isinstance(how, NotAnEngine) and how.other
    )
    return next(messages, "")


def _containers_in(document: JsonObject) -> tuple[ManifestContainer, ...]:
    """Return the containers of an object of any kind, as its controller hands them on."""
    found = containers_of(json.dumps(document))
    return () if isinstance(found, ManifestError) else found


def _name_engines(containers: Iterable[ManifestContainer]) -> tuple[str, ...]:
    """Return the names of those containers that start a known engine, with the part that each is of."""
    return tuple(
        each.full_name
        for each in containers
        if not all(isinstance(invocation_of(each.data, profile), NotAnEngine) for profile in ENGINES)
    )
