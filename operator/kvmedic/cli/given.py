"""What a person says about a fleet in files: a manifest of its workload, a KVRemediation."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.api.convert import policy_of
from kvmedic.api.pending import not_implemented
from kvmedic.api.problems import SpecInvalid
from kvmedic.api.resource import KIND, resource_from_manifest
from kvmedic.api.spec import KVRemediationSpec, TargetRef
from kvmedic.core.config_map import ConfigMap
from kvmedic.core.engine import Engine
from kvmedic.core.plan import ObjectRef
from kvmedic.core.policy import Policy, Runbook
from kvmedic.core.reasons import Reason
from kvmedic.core.version import Version
from kvmedic.core.vitals import NodeHealth
from kvmedic.engines import ENGINES
from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.config_file import contents_in
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.selection import Selector, engine_in
from kvmedic.runbooks.planning import Fault, Workload, configured, workload_of

_ANY = "any"
"""Name of the workload where no spec names one."""
_UNTOLD = KVRemediationSpec(
    target_ref=TargetRef(name=_ANY), node_health=NodeHealth.IF_AVAILABLE, runbooks=list(Runbook)
)
"""What counts where no spec is given: nothing is changed by looking at files, so nothing need be known, and
every runbook is asked. That on compression has nothing to say where no method is known to be on."""


class GivenError(Exception):
    """A file cannot be used; the message names it, the fault and the fix."""


def policy_in(file: str) -> Policy:
    """Return what a KVRemediation in a file asks for; without a file what its defaults ask for,
    except that every runbook is asked and unknown node health stops nothing.

    Raises:
        GivenError: the file cannot be used.
    """
    spec = _spec(file) if file else _UNTOLD
    if pending := not_implemented(spec):
        raise GivenError(f"{file}: {'; '.join(pending)}")
    return policy_of(spec)


def workload_in(file: str, policy: Policy, version: Version | None = None) -> Workload | Fault | None:
    """Return the engine's command line in a manifest; None without a file, a fault where it can't be read.

    Args:
        file: the manifest.
        policy: the spec, which may name the workload.
        version: the engine's; None: the image's tag tells it.

    Raises:
        GivenError: the file is no manifest.
    """
    if not file:
        return None
    target = policy.target
    owner = None if target.name == _ANY else target.name
    text = _read(file)
    found = engine_in(text, VLLM, Selector(target.container, owner))
    if isinstance(found, Refusal):
        if found.reason is RefusalReason.NOT_A_MANIFEST:
            raise GivenError(f"{file}: {found.message}")
        return Fault(_reason(found), f"{file}: {found.message}{_how_to_name(found)}")
    template = {"spec": {**found.pod_spec, "containers": [*[{}] * found.index, dict(found.data)]}}
    engines = ENGINES if version is None else tuple(Engine(profile, version) for profile in ENGINES)
    workload = workload_of(ObjectRef(found.kind, found.owner), "", template, found.name, engines)
    maps = {name: ConfigMap(contents) for name, contents in contents_in(text).items()}
    return configured(workload, maps)


def _how_to_name(refusal: Refusal) -> str:
    if refusal.reason is not RefusalReason.SEVERAL_ENGINES:
        return ""
    return "; name one in spec.targetRef (name, container) of a KVRemediation, and give that as --spec"


def _reason(refusal: Refusal) -> Reason:
    unknown = (RefusalReason.NO_ENGINE, RefusalReason.SEVERAL_ENGINES)
    return Reason.ENGINE_UNRECOGNISED if refusal.reason in unknown else Reason.FLAG_NOT_EDITABLE


def _spec(file: str) -> KVRemediationSpec:
    try:
        documents = list(YAML(typ="safe", pure=True).load_all(_read(file)))
    except YAMLError:
        raise GivenError(f"{file}: not valid YAML; check it with a linter") from None
    found = [one for one in documents if isinstance(one, dict) and one.get("kind") == KIND]
    if len(found) != 1:
        raise GivenError(f"{file}: {len(found)} objects of kind {KIND}; give a file with exactly one")
    try:
        return resource_from_manifest(found[0]).spec
    except SpecInvalid as error:
        raise GivenError(f"{file}: {'; '.join(error.problems)}") from None


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise GivenError(f"{file}: {error.strerror}; correct the path") from None
    except UnicodeDecodeError:
        raise GivenError(f"{file} is not UTF-8 text") from None
