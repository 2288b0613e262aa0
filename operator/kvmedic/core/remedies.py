"""What a person may type, by the reason for which nothing is done or a run ended.

`kvmedic explain` prints these for one resource, and docs/howto/when-it-refuses.md lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from types import MappingProxyType

from kvmedic.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Remedy:
    """A command that helps, or shows what does."""

    purpose: str
    """What it is for, to be read after "type this"."""
    command: str
    """With `$namespace`, `$name` (the resource), `$target` (its Deployment), `$digest` (of the plan that is
    shown), `$operator` (the operator's own namespace) and `$stop` (the ConfigMap that stops it). Words in
    capitals are for the reader to fill in. Whatever replaces or removes replicas without a drain says so in
    the purpose: *undrained*."""

    def typed(self, names: Mapping[str, str]) -> str:
        """Return the command with the names in place.

        Raises:
            KeyError: a name is not given.
        """
        return Template(self.command).substitute(names)


LOOK = Remedy("to look again right now", "kvmedic diagnose $name -n $namespace")
EXPLAIN = Remedy("to have it explained", "kvmedic explain $name -n $namespace")
"""What helps with every reason that has no remedy of its own."""


def _patch(field: str) -> str:
    return f"""kubectl -n $namespace patch kvr $name --type=merge -p '{{"spec":{{{field}}}}}'"""


_EDIT = "kubectl -n $namespace edit kvr $name"
_DEPLOYMENT = "kubectl -n $namespace edit deployment $target"
_SCALE = "kubectl -n $namespace scale deployment/$target --replicas=COUNT"
_LOGS = "kubectl -n $operator logs deployment/kvmedic"
_PAGE = "kubectl get --raw /api/v1/namespaces/$namespace/pods/POD:8000/proxy"
_NOTES = "kubectl -n $namespace get deployment $target -o jsonpath='{.metadata.annotations}'"
_FLAGS = (
    "kubectl -n $namespace get deployment $target -o yaml >target.yaml; kvmedic flags show -f target.yaml"
)
_LONGER = Remedy("to look back further", _patch('"sizing":{"window":"1h"}'))
_APPROVE = Remedy("to approve the plan", "kvmedic approve $name -n $namespace --digest $digest")
_PROPOSAL = Remedy("to see the exact change, to be made there", "kvmedic plan $name -n $namespace")

_REVISIONS = Remedy(
    "to see which revisions are left", "kubectl -n $namespace rollout history deployment/$target"
)

REMEDIES: Mapping[Reason, Remedy] = MappingProxyType(
    {
        Reason.METRICS_MISSING: Remedy("to see what a replica exports", f"{_PAGE}/metrics"),
        Reason.METRICS_STALE: Remedy("to see whether a replica still answers", f"{_PAGE}/metrics"),
        Reason.METRICS_AMBIGUOUS: LOOK,
        Reason.SOURCE_UNAVAILABLE: Remedy("to see what the source answers", _LOGS),
        Reason.SIGNAL_UNSUPPORTED: Remedy("to see the engine's version", f"{_PAGE}/version"),
        Reason.WINDOW_TOO_SHORT: _LONGER,
        Reason.TOO_FEW_REQUESTS: _LONGER,
        Reason.PARTIAL_PRESSURE: LOOK,
        Reason.REPLICAS_DIFFER: LOOK,
        Reason.SEVERAL_MODELS: LOOK,
        Reason.LENGTHS_MISFIT: LOOK,
        Reason.REVISION_UNREADABLE: _REVISIONS,
        Reason.REVISION_GONE: _REVISIONS,
        Reason.REVISION_UNREACHABLE: Remedy(
            "to see what the Services select", "kubectl -n $namespace get services -o wide"
        ),
        Reason.POOL_TOO_SMALL: Remedy("to add replicas", _SCALE),
        Reason.CAP_BELOW_LOAD: Remedy("to add replicas", _SCALE),
        Reason.LEVER_NOT_ALLOWED: Remedy("to allow a lever, or to widen its bounds", _EDIT),
        Reason.CAPACITY_EXHAUSTED: Remedy("to allow more replicas, or another lever", _EDIT),
        Reason.FOOTPRINT_HELD: Remedy("to give them back by hand, undrained", _SCALE),
        Reason.LOAN_HELD: Remedy("to remove the flag by hand, undrained", _DEPLOYMENT),
        Reason.AUTOSCALER_IDLE: Remedy(
            "to see what it is waiting for", "kubectl -n $namespace describe horizontalpodautoscalers"
        ),
        Reason.NO_LEVER_LEFT: Remedy("to allow another lever", _EDIT),
        Reason.HANDED_OVER_TWICE: Remedy("to start anew with another spec", _EDIT),
        Reason.HEADROOM_UNKNOWN: Remedy(
            "to see what the DCGM exporter tells of a GPU",
            "kubectl get --raw /api/v1/namespaces/EXPORTERS/pods/POD:9400/proxy/metrics",
        ),
        Reason.HOST_MEMORY_SHORT: Remedy(
            "to give the container more memory, which replaces every replica undrained", _DEPLOYMENT
        ),
        Reason.FLAG_NOT_EDITABLE: Remedy("to see where the flags stand", _FLAGS),
        Reason.CONFIG_MAP_UNAVAILABLE: Remedy(
            "to see which there are, and copies of ours", "kubectl -n $namespace get configmaps --show-labels"
        ),
        Reason.CONFIG_COPY_IMPOSSIBLE: Remedy(
            "to see what is in its way", "kubectl -n $namespace get configmaps,resourcequotas"
        ),
        Reason.CONFIG_MAP_CHANGED: Remedy(
            "to see who changed it", "kubectl -n $namespace get configmaps -o yaml --show-managed-fields"
        ),
        Reason.FLAG_UNKNOWN_TO_ENGINE: Remedy(
            "to name the engine's version beside the digest, which replaces every replica undrained",
            "kubectl -n $namespace set image deployment/$target CONTAINER=IMAGE:vVERSION@DIGEST",
        ),
        Reason.ENGINE_UNRECOGNISED: Remedy("to see what is recognised", _FLAGS),
        Reason.TARGET_NOT_FOUND: Remedy(
            "to see what there is", "kubectl -n $namespace get deployments -o wide"
        ),
        Reason.SPEC_INVALID: Remedy("to correct the spec", _EDIT),
        Reason.SPEC_NOT_IMPLEMENTED: Remedy("to correct the spec", _EDIT),
        Reason.STRATEGY_UNSUPPORTED: Remedy(
            "to replace replicas one by one",
            "kubectl -n $namespace patch deployment $target -p "
            """'{"spec":{"strategy":{"type":"RollingUpdate"}}}'""",
        ),
        Reason.TARGET_PAUSED: Remedy(
            "to resume its rollout, undrained", "kubectl -n $namespace rollout resume deployment/$target"
        ),
        Reason.NO_REPLICAS: Remedy("to let it serve", _SCALE),
        Reason.TARGET_NOT_SETTLED: Remedy(
            "to watch it settle", "kubectl -n $namespace rollout status deployment/$target"
        ),
        Reason.OWNED_BY_CONTROLLER: _PROPOSAL,
        Reason.MANAGED_BY_GITOPS: _PROPOSAL,
        Reason.MANAGED_BY_HELM: _PROPOSAL,
        Reason.TEMPLATE_CONTESTED: _PROPOSAL,
        Reason.RUNS_AT_LIMIT: Remedy("to see the open runs", "kubectl get kvr -A"),
        Reason.STORM_BREAKER_TRIPPED: Remedy("to see how the last runs ended", "kubectl get kvr -A -o yaml"),
        Reason.ROTATION_LABEL_IN_SELECTOR: Remedy("to name another label", _EDIT),
        Reason.ROTATION_LABEL_WITHOUT_EFFECT: Remedy(
            "to see what the Services select", "kubectl -n $namespace get services -o wide"
        ),
        Reason.DRAINING_VALUE_SELECTED: Remedy("to name another value", _EDIT),
        Reason.CLAIMED_BY_ANOTHER: Remedy("to see whose claim it is", _NOTES),
        Reason.TARGET_SHARED: Remedy(
            "to leave the target to the other", "kubectl -n $namespace delete kvr $name"
        ),
        Reason.SPARE_UNSCHEDULABLE: Remedy(
            "to see what the scheduler misses",
            "kubectl -n $namespace get events --field-selector=reason=FailedScheduling",
        ),
        Reason.SUSPENDED: Remedy("to go on", _patch('"suspend":false')),
        Reason.STOPPED: Remedy("to go on everywhere", "kubectl -n $operator delete configmap $stop"),
        Reason.STOP_UNREADABLE: Remedy("to see why", _LOGS),
        Reason.OBSERVE_ONLY: Remedy("to have the plan carried out", _patch('"mode":"Auto"')),
        Reason.AWAITING_APPROVAL: _APPROVE,
        Reason.APPROVAL_EXPIRED: _APPROVE,
        Reason.APPROVALS_UNREADABLE: Remedy("to install what is missing", "kvmedic crd | kubectl apply -f -"),
        Reason.IN_COOLDOWN: Remedy("to wait less", _patch('"limits":{"cooldown":"10m"}')),
        Reason.BUDGET_EXHAUSTED: Remedy("to allow more", _patch('"limits":{"maxRunsPerDay":10}')),
        Reason.OUTSIDE_WINDOWS: Remedy("to change the windows", _EDIT),
        Reason.TOO_FEW_HEALTHY: Remedy(
            "to see which are not Ready", "kubectl -n $namespace get pods -o wide"
        ),
        Reason.REPLICA_NOT_STARTING: Remedy(
            "to see what keeps it down", "kubectl -n $namespace get pods,events --sort-by=.metadata.name"
        ),
        Reason.DRAIN_TIMED_OUT: Remedy(
            "to let them go with their requests", _patch('"rollout":{"onDrainTimeout":"Proceed"}')
        ),
        Reason.CANARY_FAILED: Remedy(
            "to see what became of it", "kubectl -n $namespace get events --sort-by=.lastTimestamp"
        ),
        Reason.FLAG_DRIFTED: Remedy(
            "to see the changes", "kubectl -n $namespace rollout history deployment/$target"
        ),
        Reason.CHANGE_REFUSED: Remedy(
            "to see which policies there are",
            "kubectl get validatingadmissionpolicybindings,validatingwebhookconfigurations",
        ),
        Reason.ROLLOUT_CONTESTED: Remedy(
            "to see who sets it", "kubectl -n $namespace get deployment $target --show-managed-fields -o yaml"
        ),
        Reason.SCALED_TO_ZERO: Remedy("to let it serve again", _SCALE),
        Reason.FENCE_LOST: Remedy("to see whose claim it is", _NOTES),
        Reason.RUN_UNREADABLE: Remedy(
            "to read the record", "kubectl -n $namespace get kvr $name -o jsonpath='{.status.run}'"
        ),
        Reason.INTERNAL_ERROR: Remedy("to see the error", _LOGS),
        Reason.API_UNAVAILABLE: Remedy("to see the error", _LOGS),
    }
)
"""By reason. One without an entry is its own explanation, or `kvmedic explain` has more to say."""


def remedy_of(reason: Reason) -> Remedy:
    """Return what to type for a reason."""
    return REMEDIES.get(reason, EXPLAIN)
