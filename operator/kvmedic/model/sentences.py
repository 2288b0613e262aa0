"""Every reason in a sentence.

What a person may type, by the reason for which nothing is done or a run ended.

`kvmedic explain` prints these for one resource, and docs/howto/when-it-refuses.md lists them all.

Texts that everybody may read, without what looks like a secret.

A message is redacted before it is cut to a length: a secret of which half is left is no longer recognised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from types import MappingProxyType

from kvmedic.model.reasons import Reason

SENTENCES = MappingProxyType(
    {
        Reason.TARGET_FOUND: "The spec is valid and the target exists.",
        Reason.METRICS_FOUND: "Every replica has fresh values for every signal that was asked for.",
        Reason.NO_RUN: "No run is open.",
        Reason.NOTHING_TO_DO: "Nobody needs to do anything.",
        Reason.HEALTHY: "No replica preempts beyond the trigger.",
        Reason.GPU_FAULT: "A GPU of a replica is broken; no setting mends that.",
        Reason.THERMAL_EMERGENCY: "A GPU of a replica is slowed down by heat or its hardware's protection.",
        Reason.HOST_OUT_OF_MEMORY: "A replica was ended at its container's memory limit.",
        Reason.CUDA_OUT_OF_MEMORY: "A replica ended because its GPU's memory ran out.",
        Reason.DEPLOY_CORRELATED: (
            "A new revision changed what the KV cache depends on, and most replicas preempt beyond the "
            "trigger since it came."
        ),
        Reason.ONE_REPLICA_PRESSURED: (
            "One replica preempts beyond the trigger while its peers serve and are calm."
        ),
        Reason.FLEET_WIDE_DEMAND: (
            "Most replicas preempt beyond the trigger: more runs at once than the KV cache holds."
        ),
        Reason.CAPACITY_SHORT: (
            "Most replicas preempt beyond the trigger and no setting is left that would help: more replicas "
            "are allowed."
        ),
        Reason.CAPACITY_EXHAUSTED: (
            "Most replicas preempt beyond the trigger, and no lever is left: neither a setting nor more "
            "replicas."
        ),
        Reason.NO_COMPRESSION: "No method that compresses the KV cache is known to be on.",
        Reason.COMPRESSION_UNDOUBTED: "KV compression is on, and nothing speaks against it.",
        Reason.COMPRESSION_SAVES: "KV compression saves what it should, at like load.",
        Reason.COMPRESSION_NOT_APPLIED: "KV compression is configured, and running engines do not have it.",
        Reason.EAGER_FALLBACK: (
            "Throughput fell and device memory rose with KV compression, or grows with the square of the "
            "prompt, as where attention is not fused any more."
        ),
        Reason.BLOCKS_NOT_FREED: "KV compression evicts tokens, and too few blocks or none become free.",
        Reason.PAGE_SELECTION: "This KV compression reads fewer pages and frees none, by design.",
        Reason.PRESSED_THOUGH_COMPRESSED: (
            "KV compression frees blocks, and replicas preempt beyond the trigger all the same."
        ),
        Reason.ATTENTION_UNPROVEN: "The fleet is slower, and whether attention is still fused is not known.",
        Reason.ATTENTION_UNCOMPARED: "Attention is not fused; whether the method is why is to be shown.",
        Reason.COMPRESSION_UNPROVEN: "Whether KV compression frees blocks is not known, and must be now.",
        Reason.FIX_DUE: "Compression saved nothing, and a fix that the spec allows is due.",
        Reason.FIX_WAITS: "A fix that the spec allows waits; the pressure is a matter of the other runbook.",
        Reason.RUNBOOK_SWITCHED: "One runbook leaves the fleet to the other.",
        Reason.METRICS_MISSING: "At least one replica has no value for a signal that the diagnosis needs.",
        Reason.METRICS_STALE: "The newest sample of at least one replica is too old.",
        Reason.METRICS_AMBIGUOUS: "The source returned contradicting series for one replica.",
        Reason.SOURCE_UNAVAILABLE: "The metrics source did not answer completely.",
        Reason.SIGNAL_UNSUPPORTED: "The engine does not export a signal that the diagnosis needs.",
        Reason.WINDOW_TOO_SHORT: "Requests stay longer than the window looks back.",
        Reason.TOO_FEW_REQUESTS: "Too few requests finished to measure their lengths.",
        Reason.PARTIAL_PRESSURE: "Some replicas preempt beyond the trigger and others are calm.",
        Reason.REPLICAS_DIFFER: "The replicas run with different pools, settings or versions.",
        Reason.SEVERAL_MODELS: "The replicas serve more than one model.",
        Reason.LENGTHS_MISFIT: "What runs takes far more or less of the KV cache than its lengths say.",
        Reason.LOAD_DIFFERS: "Load or lengths differ too much from before for a comparison.",
        Reason.NODE_HEALTH_UNKNOWN: "The health of a replica's GPUs is not known, and the spec requires it.",
        Reason.PREVIOUS_LOG_UNREADABLE: "A replica ended, and the log that says why could not be read.",
        Reason.START_LOG_UNREADABLE: "Only a log that could not be read tells how an engine stores keys.",
        Reason.REVISION_UNREADABLE: "A new revision came, and what it changed cannot be read.",
        Reason.POOL_NOT_PAGED: "The engine does not tell that its KV cache is a pool of blocks.",
        Reason.METHOD_UNKNOWN: "What the method of KV compression does to blocks is not known.",
        Reason.BASELINE_MISSING: "How the fleet was without KV compression is not known.",
        Reason.PREEMPTIONS_CHEAP: (
            "Prompts dominate the cache, so preemptions are cheap and a cut would cost goodput."
        ),
        Reason.CAP_WITHOUT_EFFECT: (
            "The computed cap is not below what was seen running, so it would change nothing."
        ),
        Reason.CAP_BELOW_LOAD: (
            "A lower cap would serve fewer tokens than are offered, so that requests would wait."
        ),
        Reason.GAIN_WITHIN_NOISE: "The expected gain is so small that it cannot be told from noise.",
        Reason.POOL_TOO_SMALL: (
            "The KV cache is too small for requests of these lengths; a cap cannot mend that."
        ),
        Reason.LEVER_NOT_ALLOWED: "The spec's levers do not allow the change that would help.",
        Reason.LEVER_EXHAUSTED: "The lever was tried on this evidence and did not help.",
        Reason.LEVER_AT_BOUND: "The lever stands at the bound that the spec sets.",
        Reason.LEVER_WITHOUT_EFFECT: "The lever would change nothing on this engine as it is set.",
        Reason.BETTER_LEVER: "Another allowed lever is expected to help more.",
        Reason.LENGTH_IN_USE: "Requests use, or ask for, nearly the whole length that the engine takes.",
        Reason.PRESENT_VALUE_UNKNOWN: (
            "The engine's present value is not known, so no value is known to be a change for the better."
        ),
        Reason.NO_LEVER_LEFT: "No allowed lever would help now; the message says why for each.",
        Reason.HEADROOM_UNKNOWN: "How much of the GPUs' memory stays free under load is not known.",
        Reason.HEADROOM_SHORT: "Too little of the GPUs' memory stays free under load.",
        Reason.PREFIXES_NOT_SHARED: "Prompts can have too little in common for it to be worth keeping once.",
        Reason.HOST_MEMORY_SHORT: "The container's memory limit does not cover what would be kept there.",
        Reason.FLAG_NOT_EDITABLE: "The flag stands where it cannot be edited safely.",
        Reason.CONFIG_MAP_UNAVAILABLE: (
            "The ConfigMap with the engine's configuration file is gone, or may not be read."
        ),
        Reason.CONFIG_COPY_IMPOSSIBLE: "The copy of the ConfigMap cannot be made.",
        Reason.FLAG_UNKNOWN_TO_ENGINE: "The engine's version is not known to have the flag.",
        Reason.ENGINE_UNRECOGNISED: "The target container does not run a known engine.",
        Reason.FIX_NOT_ALLOWED: "The spec's compression.allowedFixes has no fix for this that is left.",
        Reason.TRIAL_IMPOSSIBLE: "No trial pod can be made of the target's pod template.",
        Reason.ACCURACY_NOT_YET_KNOWN: "The evaluation has too few samples to say whether accuracy is kept.",
        Reason.GATE_MISSING: "A changed cache policy must pass an evaluation first, and none can be made.",
        Reason.FIXES_EXHAUSTED: "Nothing of what spec.compression.allowedFixes lists is left to try.",
        Reason.RUNBOOK_SWITCHED_TWICE: (
            "Both runbooks changed this pod template in vain; the fleet goes to neither a second time."
        ),
        Reason.CAP_RIGHT_SIZED: "The cap follows from the measured lengths and the pool.",
        Reason.CAP_AT_BOUND: (
            "The computed cap lies under the lever's bound; the bound is applied, as it is still a cut."
        ),
        Reason.MEMORY_STEPPED_DOWN: "The engine is to take one step less of its GPUs' memory.",
        Reason.WATERMARK_RAISED: "A share of the KV cache is kept free when a sequence is admitted.",
        Reason.LENGTH_LIMIT_LOWERED: "No request of the window needs the length that the engine takes.",
        Reason.STEP_BUDGET_LOWERED: "A step may have far more tokens than the traffic needs.",
        Reason.MEMORY_STEPPED_UP: "The engine is to take one step more of its GPUs' memory, as it was free.",
        Reason.PREFIXES_REUSED: "What prompts begin with in common is to be kept once.",
        Reason.PREFILL_CHUNKED: "Long prompts are to be spread over several steps.",
        Reason.HOST_MEMORY_LENT: "Preempted sequences are to be kept in the host's memory, for a time.",
        Reason.HOST_MEMORY_GIVEN_BACK: "Host memory that was lent for a while is given back.",
        Reason.REPLICAS_ADDED: "Replicas are added for a while, until fewer carry the load.",
        Reason.REPLICAS_GIVEN_BACK: "Replicas that were added for a while go one by one, drained.",
        Reason.COMPRESSION_REVERTED: "KV compression is turned off again, with all that turned it on.",
        Reason.RECLAMATION_PROBED: "A long generation on a trial pod is to show whether blocks become free.",
        Reason.PROMPTS_PROBED: "Prompts on a trial pod are to show whether attention is still fused.",
        Reason.PROMPTS_COMPARED: "The same prompts on a trial pod are to show attention with the method off.",
        Reason.START_COMPARED: "A trial pod is to show how many blocks there are with the method off.",
        Reason.ACCURACY_EVALUATED: "An evaluation of a trial pod is to show whether accuracy is kept.",
        Reason.FIX_TURNED_ON: "A setting that a trial pod proved takes the place of what saved nothing.",
        Reason.FOOTPRINT_HELD: (
            "Replicas that were added for a while stay until it has been calm and fewer carry the load."
        ),
        Reason.LOAN_HELD: (
            "Host memory that was lent for a while stays until it has been calm and the fleet does without."
        ),
        Reason.LOAN_FORGOTTEN: "A setting that was lent for a while is somebody else's now and stays.",
        Reason.TARGET_NOT_FOUND: "The target Deployment or its container does not exist.",
        Reason.SPEC_INVALID: "The spec cannot be followed as it is written.",
        Reason.SPEC_NOT_IMPLEMENTED: "The spec asks for something that this version does not do yet.",
        Reason.STRATEGY_UNSUPPORTED: "The Deployment's strategy is not RollingUpdate.",
        Reason.TARGET_PAUSED: "The Deployment is paused by someone else.",
        Reason.NO_REPLICAS: "The Deployment is scaled to zero.",
        Reason.TARGET_NOT_SETTLED: "The Deployment is in the middle of another change.",
        Reason.OWNED_BY_CONTROLLER: "Another controller owns the Deployment and would revert a change.",
        Reason.MANAGED_BY_GITOPS: "A GitOps tool applies the Deployment and would revert a change.",
        Reason.MANAGED_BY_HELM: "A Helm release owns the Deployment; its next upgrade would revert a change.",
        Reason.TEMPLATE_CONTESTED: "Someone else put a change of this template back; nothing more is tried.",
        Reason.MANAGED_BY_VPA: "A VerticalPodAutoscaler evicts the target's pods and changes their size.",
        Reason.AUTOSCALER_ACTIVE: "An autoscaler is changing the number of replicas.",
        Reason.ROTATION_LABEL_IN_SELECTOR: "The rotation label is part of the Deployment's own selector.",
        Reason.ROTATION_LABEL_WITHOUT_EFFECT: (
            "No Service selects by the rotation label, so it takes no replica out of rotation."
        ),
        Reason.DRAINING_VALUE_SELECTED: (
            "Somebody else selects pods by the value that the rotation label has while a replica drains."
        ),
        Reason.CLAIMED_BY_ANOTHER: "Another resource or an earlier run holds the claim on the target.",
        Reason.REPLICAS_AUTOSCALED: (
            "An autoscaler decides the number of replicas and would take the spare away."
        ),
        Reason.TARGET_SHARED: "An older resource looks after the same target.",
        Reason.SPARE_UNSCHEDULABLE: "The spare replica could not be scheduled.",
        Reason.REVISION_GONE: "No ReplicaSet keeps the other revision's pod template any more.",
        Reason.REVISION_UNREACHABLE: (
            "Replicas of the previous revision carry labels that a Service of today does not select."
        ),
        Reason.SUSPENDED: "The resource is suspended.",
        Reason.STOPPED: "The operator-wide stop is on.",
        Reason.STOP_UNREADABLE: "The operator-wide stop could not be read, so it counts as on.",
        Reason.OBSERVE_ONLY: "The mode is Observe: the plan is shown and nothing is changed.",
        Reason.IN_COOLDOWN: "The cooldown after the last run is not over.",
        Reason.BUDGET_EXHAUSTED: "The day's runs are used up.",
        Reason.OUTSIDE_WINDOWS: "No run is opened outside of the spec's windows.",
        Reason.TOO_FEW_HEALTHY: "Fewer replicas are healthy than the spec demands.",
        Reason.AWAITING_APPROVAL: "The mode is Approve: the plan waits until a person approves it.",
        Reason.APPROVAL_EXPIRED: "There is an approval, and it does not count for the plan as it is now.",
        Reason.APPROVALS_UNREADABLE: "Approvals could not be read, so none counts.",
        Reason.RUNS_AT_LIMIT: "As many runs are open as the operator's configuration allows at once.",
        Reason.STORM_BREAKER_TRIPPED: (
            "Several runs ended badly within a short time; no run is opened anywhere for a while."
        ),
        Reason.PLANNED: "The plan is recorded and its first effect is next.",
        Reason.ROLLING_OUT: "The change is being rolled out, one replica at a time.",
        Reason.AWAITING_CANARY: "The first new replica is starting beside all old ones.",
        Reason.DRAINING: "One replica is out of rotation and finishes its requests.",
        Reason.DRAIN_TIMED_OUT: "No replica with requests in flight is let go; all of them serve.",
        Reason.AWAITING_REPLICA: "The next new replica is starting.",
        Reason.REPLICA_NOT_STARTING: "A new replica does not come up; those changed before it serve.",
        Reason.AWAITING_CONTROLLER: "The Deployment controller has not acted yet.",
        Reason.AWAITING_EVALUATION: "The team's Job evaluates a trial pod.",
        Reason.VERIFYING: "All replicas run the change; its effect is being measured.",
        Reason.ROLLING_BACK: "The change is being taken back, one replica at a time.",
        Reason.HOLDING: "The run waits; the fleet serves with every replica.",
        Reason.RECOVERED: "The trouble is gone at like load, and throughput held.",
        Reason.IMPROVED: "Clearly better at like load; the trigger or an objective is still not met.",
        Reason.KEPT_BY_HAND: "A person asked for the change to stay; nobody judged it.",
        Reason.KEPT_UNJUDGED: "There was no verdict in time, and spec.verify.onInconclusive lets it stay.",
        Reason.NOT_RECOVERED: "No better, or worse, at like load.",
        Reason.INCONCLUSIVE: "The evidence does not allow a verdict.",
        Reason.TRIAL_ANSWERED: "A trial showed what was asked; no setting of the fleet was touched.",
        Reason.TRIAL_UNANSWERED: "A trial did not show what was asked; no setting of the fleet was touched.",
        Reason.CANARY_FAILED: "The first new replica did not come up; every old one was left alone.",
        Reason.REPLACEMENT_CALLED_OFF: (
            "The replica could not be replaced safely; it was left in rotation and the spare was removed."
        ),
        Reason.AUTOSCALER_IDLE: "The autoscaler did not follow its own minimum.",
        Reason.REPLICAS_CHANGED: (
            "Someone else changed the number of replicas; it was left alone and the run ended."
        ),
        Reason.FLAG_DRIFTED: "Someone else changed the pod template; it was left alone and the run ended.",
        Reason.CHANGE_REVERTED: (
            "Someone else put the old setting back in the middle of the run; it was left so."
        ),
        Reason.CONFIG_MAP_CHANGED: (
            "Someone else changed the ConfigMap in the middle of the run; the change was taken back, so that "
            "theirs counts."
        ),
        Reason.CHANGE_REFUSED: (
            "The API server refuses the run's next write; the run waits and goes on once it is allowed."
        ),
        Reason.ROLLOUT_CONTESTED: (
            "Someone else sets the frozen rollout's fields again and again; it is held paused meanwhile."
        ),
        Reason.SCALED_TO_ZERO: "The Deployment was scaled to zero during the run.",
        Reason.FLEET_GIVEN_BACK: (
            "No record knew the run that held the fleet frozen; the note on the Deployment gives it back."
        ),
        Reason.FENCE_LOST: (
            "Another operator or resource moved the target; this run ended without touching it."
        ),
        Reason.ABANDONED: "The resource was deleted with an order to leave the change in place.",
        Reason.RESOURCE_DELETED: "The resource was deleted, and the change was taken back.",
        Reason.ROLLED_BACK_BY_HAND: "A person asked for the change to be taken back, and it was.",
        Reason.TARGET_DELETED: "The target Deployment was deleted during the run.",
        Reason.OBJECTIVE_BREACHED: "The fleet is in trouble and an objective of the spec is breached.",
        Reason.OBJECTIVES_MET: "The fleet is in trouble and no objective of the spec is breached any more.",
        Reason.RUN_UNREADABLE: (
            "The run recorded in the status cannot be read; nothing is done until a person looks."
        ),
        Reason.INTERNAL_ERROR: "The operator met an unexpected error; nothing is done until the next try.",
        Reason.API_UNAVAILABLE: "The Kubernetes API did not answer.",
    }
)
"""One sentence per reason, for messages and for the generated reference."""


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
_KEEP_AWAY = Remedy(
    "to keep requests from the replica until its node is mended",
    "kubectl -n $namespace label pod POD ROTATION-LABEL=DRAINING --overwrite",
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
        Reason.RUNBOOK_SWITCHED_TWICE: Remedy("to start anew with another spec", _EDIT),
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
        Reason.GPU_FAULT: _KEEP_AWAY,
        Reason.THERMAL_EMERGENCY: _KEEP_AWAY,
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


HIDDEN = "***"

_SECRET_WORD = r"(?:api[-_]?key|token(?!s|iz)|secret|passw(?:or)?d|credential)"
_NAMED = re.compile(
    rf"((?:--[\w.-]*{_SECRET_WORD}[\w.-]*[\"']?(?:\s*[=:,]\s*|\s+)|\b[\w.-]*{_SECRET_WORD}[\w.-]*[\"']?[=:]\s*)[\"']?)"
    r"([^\s\"',;]+)",
    re.IGNORECASE,
)
"""A flag, variable or field whose name says that it holds a secret, and its value."""
_SHAPED = re.compile(
    r"\b(?:hf_|sk-(?=[\w-]*\d)[\w-]{8}|gh[opsu]_|glpat-|xox[abp]-|AKIA)[\w-]{8,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(?i:\bbearer\s+)\S+"
)
"""Secrets that are known by how they begin."""
_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@]+@", re.IGNORECASE)


def redact(text: str) -> str:
    """Return a text with values in the place of which nothing but `HIDDEN` is told."""
    without = _URL.sub(rf"\1{HIDDEN}@", _SHAPED.sub(HIDDEN, text))
    return _NAMED.sub(rf"\1{HIDDEN}", without)


def names_secret(name: str) -> bool:
    """Return whether the name of a flag or a variable says that its value is a secret."""
    return re.search(_SECRET_WORD, name, re.IGNORECASE) is not None
