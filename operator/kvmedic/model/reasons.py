"""Every reason that kvmedic gives, one row each: its name, its sentence, what to type, what follows from it.

Reasons appear in conditions, Events, metrics, logs and history, always spelled the same. They are an
API: a stored reason that is not listed here is an error, not a default.

`kvmedic explain` prints sentences and remedies for one resource;
docs/howto/when-it-refuses.md lists them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from string import Template
from typing import Self, TypeAlias


class Trait(Enum):
    """What follows from a reason. The place that acts on a trait asks for it; no place lists reasons."""

    NEEDS_A_PERSON = auto()
    """It does not pass without somebody doing something: the condition ActionRequired is True."""
    STALLS = auto()
    """Nothing is done for the resource until somebody changes it: the condition Stalled is True."""
    NO_METRICS = auto()
    """The metrics themselves are to blame: the condition MetricsAvailable is False."""
    DIVERTS = auto()
    """A diagnosis that another runbook, and a person, is for: nothing is changed on the workload."""
    NO_TROUBLE = auto()
    """A diagnosis of a fleet without trouble."""
    HELPED = auto()
    """An end of a run after which the change stays because it helped."""
    KEPT = auto()
    """An end of a run after which the change stays, judged or not."""
    GOOD_END = auto()
    """An end of a run that nobody need be warned of."""
    FAILED = auto()
    """An end of a run after which what was taken back is not tried again on the same pod template."""
    BAD_END = auto()
    """An end of a run that speaks against making the next change: it did not help, did not start, could not
    be judged and was taken back, was reverted by another controller, or another operator moved the same
    target. A spare that finds no device, a target that is edited, scaled to zero or deleted says nothing
    about our changes; neither does a person who asks for a rollback, or anybody could stop all fleets by
    asking for three."""
    RESTORE_FAILED = auto()
    """An end of a temporary change's restore after which it is not tried again on the same evidence."""
    REPLICAS_TAKEN = auto()
    """An end of a run after which the number of replicas is somebody else's."""
    UNTRIED = auto()
    """An end of a run that changed nothing of the fleet."""
    TRIAL_FAILED = auto()
    """An end of a trial that would come again; others are about the fleet, and pass."""
    NO_GAIN = auto()
    """Nobody has to do anything: the lever is free, and nothing would be gained."""
    CHEAP = auto()
    """What is said of a cut where the fleet is hardly worse off for its preemptions."""
    ASKS_APPROVAL = auto()
    """The message is what a person types: another text is worth a write."""
    SHOWS_FIGURES = auto()
    """The message has the figures that a person waits for: they are written each time that they are read."""


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

    def write_command(self, names: Mapping[str, str]) -> str:
        """Return the command with the names in place.

        Raises:
            KeyError: a name is not given.
        """
        return Template(command_for(self.command, names)).substitute(names)


def command_for(command: str, names: Mapping[str, str]) -> str:
    """Return a command that names its target's kind as `kind` of the names says; without it a Deployment."""
    kind = names.get("kind", "Deployment").lower()
    return command if kind == "deployment" else _KIND.sub(kind, command)


_KIND = re.compile(r"\bdeploy(?:ment)?(?=[/ ]\$target\b)")


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
_DOCTOR = Remedy(
    "to see all that stands in the way, with fixes", "kvmedic doctor deploy/$target -n $namespace"
)
_KEEP_AWAY = Remedy(
    "to keep requests away from the replica until its node is repaired",
    "kubectl -n $namespace label pod POD ROTATION-LABEL=DRAINING --overwrite",
)
_LONGER = Remedy("to look back further", _patch('"sizing":{"window":"1h"}'))
_APPROVE = Remedy("to approve the plan", "kvmedic approve $name -n $namespace --digest $digest")
_PROPOSAL = Remedy("to see the exact change, to be made there", "kvmedic plan $name -n $namespace")

_REVISIONS = Remedy(
    "to see which revisions are left", "kubectl -n $namespace rollout history deployment/$target"
)


Row: TypeAlias = tuple[str, str, Remedy | None, frozenset[Trait]]


def row(name: str, sentence: str, *rest: Remedy | Trait) -> Row:
    """Return a reason's row: its name in the CRD, its sentence, what to type where that helps, its traits."""
    remedies = [each for each in rest if isinstance(each, Remedy)]
    traits = frozenset(each for each in rest if isinstance(each, Trait))
    return name, sentence, (remedies[0] if remedies else None), traits


class Reason(StrEnum):
    """The reason, in CamelCase."""

    _value_: str
    sentence: str
    remedy: Remedy | None
    """None where the sentence is its own explanation, or `kvmedic explain` has more to say."""
    traits: frozenset[Trait]

    def __new__(
        cls,
        name: str,
        sentence: str = "",
        remedy: Remedy | None = None,
        traits: frozenset[Trait] = frozenset(),
    ) -> Self:
        """Return the reason of one row.

        Raises:
            TypeError: it has no sentence, so that the import fails.
        """
        if not sentence:
            raise TypeError(f"the reason {name} has no sentence: write its row")
        reason = str.__new__(cls, name)
        reason._value_ = name
        reason.sentence, reason.remedy, reason.traits = sentence, remedy, traits
        return reason

    # fmt: off
    # What is in order.
    TARGET_FOUND = row("TargetFound", "The spec is valid and the target exists.")
    METRICS_FOUND = row("MetricsFound", "Every replica has fresh values for every signal that was asked for.")
    ELIGIBLE = row("Eligible", "Nothing that is known keeps a change of the target from beginning.")
    NOT_ELIGIBLE = row("NotEligible", "No change of the target could begin as it is.",
        _DOCTOR, Trait.SHOWS_FIGURES)
    ELIGIBILITY_UNKNOWN = row("EligibilityUnknown", "It is unknown whether a change could begin.",
        _DOCTOR, Trait.SHOWS_FIGURES)
    NO_RUN = row("NoRun", "No run is open.")
    NOTHING_TO_DO = row("NothingToDo", "Nothing needs to be done.")
    # What was found (branches of a diagnosis).
    HEALTHY = row("Healthy", "No replica is beyond the trigger.", Trait.NO_TROUBLE)
    GPU_FAULT = row("GpuFault", "A GPU of a replica is broken; no setting repairs that.", _KEEP_AWAY,
        Trait.NEEDS_A_PERSON, Trait.DIVERTS)
    THERMAL_EMERGENCY = row("ThermalEmergency",
        "A GPU of a replica is slowed down by heat or its hardware's protection.", _KEEP_AWAY,
        Trait.NEEDS_A_PERSON, Trait.DIVERTS)
    HOST_OUT_OF_MEMORY = row("HostOutOfMemory", "A replica was killed at its container's memory limit.",
        Trait.NEEDS_A_PERSON, Trait.DIVERTS)
    CUDA_OUT_OF_MEMORY = row("CudaOutOfMemory", "A replica ended because its GPU ran out of memory.")
    DEPLOY_CORRELATED = row("DeployCorrelated",
        "A new revision changed what the KV cache depends on. Most replicas preempt beyond the trigger "
        "since then.")
    ONE_REPLICA_PRESSURED = row("OneReplicaPressured",
        "One replica preempts beyond the trigger while its peers serve and are calm.")
    FLEET_WIDE_DEMAND = row("FleetWideDemand",
        "Several replicas preempt, or their answers hang, beyond the trigger: more requests run at once than "
        "the KV cache holds.")
    CAP_TOO_LOW = row("CapTooLow",
        "Requests wait for the cap on running sequences, while the KV cache has room for more.")
    CAP_HARMS = row("CapHarms",
        "Users are worse off than before kvmedic changed the cap on running sequences, at as much work.")
    CAPACITY_SHORT = row("CapacityShort",
        "Most replicas preempt or keep users waiting beyond the trigger, and no setting would help: only "
        "more replicas do.")
    CAPACITY_EXHAUSTED = row("CapacityExhausted",
        "Most replicas preempt or keep users waiting beyond the trigger, and no lever is left: neither a "
        "setting nor more replicas.", Remedy("to allow more replicas, or another lever", _EDIT),
        Trait.NEEDS_A_PERSON, Trait.DIVERTS)
    NO_COMPRESSION = row("NoCompression", "No method that compresses the KV cache is known to be on.",
        Trait.NO_TROUBLE)
    COMPRESSION_UNDOUBTED = row("CompressionUndoubted",
        "KV compression is on, and no evidence is against it.", Trait.NO_TROUBLE)
    COMPRESSION_SAVES = row("CompressionSaves", "KV compression saves what it should, at comparable load.",
        Trait.NO_TROUBLE)
    COMPRESSION_NOT_APPLIED = row("CompressionNotApplied",
        "KV compression is configured, but the running engines do not have it on.", Trait.NEEDS_A_PERSON)
    EAGER_FALLBACK = row("EagerFallback",
        "Attention seems to be unfused: with KV compression, device memory rose and throughput fell, or "
        "memory grows with the square of the prompt.")
    BLOCKS_NOT_FREED = row("BlocksNotFreed",
        "KV compression evicts tokens, but too few blocks become free.")
    PAGE_SELECTION = row("PageSelection", "This KV compression reads fewer pages and frees none, by design.")
    PRESSED_THOUGH_COMPRESSED = row("PressedThoughCompressed",
        "KV compression frees blocks, but replicas still preempt beyond the trigger.")
    ATTENTION_UNPROVEN = row("AttentionUnproven",
        "The fleet is slower, and it is unknown whether attention is still fused.")
    ATTENTION_UNCOMPARED = row("AttentionUncompared",
        "Attention is not fused; a trial must show whether the method is the cause.")
    COMPRESSION_UNPROVEN = row("CompressionUnproven",
        "It is unknown whether KV compression frees blocks, and a decision depends on it.")
    FIX_DUE = row("FixDue", "Compression saved nothing, and a fix that the spec allows is due.")
    FIX_WAITS = row("FixWaits",
        "A fix that the spec allows waits; the other runbook handles the pressure.")
    # What one runbook leaves to the other.
    RUNBOOK_SWITCHED = row("RunbookSwitched", "One runbook hands the fleet to the other.")
    # Why nothing can be said.
    METRICS_MISSING = row("MetricsMissing",
        "At least one replica has no value for a signal that the diagnosis needs.",
        Remedy("to see what a replica exports", f"{_PAGE}/metrics"), Trait.NO_METRICS)
    METRICS_STALE = row("MetricsStale", "The newest sample of at least one replica is too old.",
        Remedy("to see whether a replica still answers", f"{_PAGE}/metrics"), Trait.NO_METRICS)
    METRICS_AMBIGUOUS = row("MetricsAmbiguous", "The source returned contradicting series for one replica.",
        LOOK, Trait.NO_METRICS)
    SOURCE_UNAVAILABLE = row("SourceUnavailable", "The metrics source did not answer completely.",
        Remedy("to see what the source answers", _LOGS), Trait.NO_METRICS)
    SIGNAL_UNSUPPORTED = row("SignalUnsupported",
        "The engine does not export a signal that the diagnosis needs.",
        Remedy("to see the engine's version", f"{_PAGE}/version"), Trait.NO_METRICS)
    TOO_FEW_REQUESTS = row("TooFewRequests",
        "Too few requests began and ended within the window to measure their lengths.", _LONGER)
    PARTIAL_PRESSURE = row("PartialPressure", "Some replicas are beyond the trigger and others are calm.",
        LOOK)
    QUEUE_UNEXPLAINED = row("QueueUnexplained",
        "Requests wait, and neither the cap on running sequences nor the KV cache is full.", LOOK)
    REPLICAS_DIFFER = row("ReplicasDiffer",
        "The replicas differ in their pools, settings, versions or models.", LOOK)
    LENGTHS_MISFIT = row("LengthsMisfit",
        "Running requests use far more or less KV cache than their lengths suggest.", LOOK)
    LOAD_DIFFERS = row("LoadDiffers", "Load or lengths differ too much from before for a comparison.")
    NODE_HEALTH_UNKNOWN = row("NodeHealthUnknown",
        "The health of a replica's GPUs is not known, and the spec requires it.", Trait.NO_METRICS)
    LOG_UNREADABLE = row("LogUnreadable", "The engine's log that would show the cause could not be read.")
    REVISION_UNREADABLE = row("RevisionUnreadable",
        "A new revision came, and what it changed cannot be read.", _REVISIONS)
    POOL_NOT_PAGED = row("PoolNotPaged", "The engine does not report its KV cache as a pool of blocks.")
    METHOD_UNKNOWN = row("MethodUnknown", "It is unknown what the KV compression method does to blocks.",
        Trait.NEEDS_A_PERSON)
    BASELINE_MISSING = row("BaselineMissing", "There are no figures of the fleet without KV compression.")
    # Why a found trouble is not met with a change.
    PREEMPTIONS_CHEAP = row("PreemptionsCheap",
        "Prompts dominate the cache, so preemptions are cheap and a cut would serve less.", Trait.NO_GAIN,
        Trait.CHEAP)
    CAP_BELOW_LOAD = row("CapBelowLoad",
        "A lower cap would serve fewer tokens than requests ask for, so requests would wait.",
        Remedy("to add replicas", _SCALE), Trait.NEEDS_A_PERSON)
    CAP_WITHOUT_EFFECT = row("CapWithoutEffect",
        "The computed cap is not below what was seen running, so it would change nothing.", Trait.NO_GAIN,
        Trait.CHEAP)
    GAIN_WITHIN_NOISE = row("GainWithinNoise",
        "The expected gain is within the noise.", Trait.NO_GAIN, Trait.CHEAP)
    POOL_TOO_SMALL = row("PoolTooSmall",
        "The KV cache is too small for requests of these lengths; a lower cap would not help.",
        Remedy("to add replicas", _SCALE), Trait.NEEDS_A_PERSON)
    LEVER_NOT_ALLOWED = row("LeverNotAllowed", "The spec's levers do not allow the change that would help.",
        Remedy("to allow a lever, or to widen its bounds", _EDIT), Trait.NEEDS_A_PERSON)
    LEVER_EXHAUSTED = row("LeverExhausted", "The lever was tried on this evidence and did not help.",
        Trait.NEEDS_A_PERSON)
    LEVER_AT_BOUND = row("LeverAtBound", "The lever stands at the bound that the spec sets.",
        Trait.NEEDS_A_PERSON)
    LEVER_WITHOUT_EFFECT = row("LeverWithoutEffect",
        "The lever would change nothing on this engine as it is set.", Trait.NEEDS_A_PERSON, Trait.NO_GAIN)
    BETTER_LEVER = row("BetterLever", "Another allowed lever is expected to help more.")
    TRAFFIC_UNSUITED = row("TrafficUnsuited", "The window's traffic would gain nothing from the lever.",
        Trait.NO_GAIN)
    PRESENT_VALUE_UNKNOWN = row("PresentValueUnknown",
        "The engine's present value is unknown, so no value is sure to be better.",
        Trait.NEEDS_A_PERSON)
    NO_LEVER_LEFT = row("NoLeverLeft", "No allowed lever would help now; the message says why for each.",
        Remedy("to allow another lever", _EDIT), Trait.NEEDS_A_PERSON)
    HEADROOM_UNKNOWN = row("HeadroomUnknown",
        "It is unknown how much GPU memory stays free under load.",
        Remedy("to see what the DCGM exporter reports about a GPU",
               "kubectl get --raw /api/v1/namespaces/EXPORTERS/pods/POD:9400/proxy/metrics"),
        Trait.NEEDS_A_PERSON)
    HEADROOM_SHORT = row("HeadroomShort", "Too little GPU memory stays free under load.",
        Trait.NEEDS_A_PERSON)
    HOST_MEMORY_SHORT = row("HostMemoryShort",
        "The container's memory limit does not cover the KV cache that would be kept there.",
        Remedy("to give the container more memory, which replaces every replica undrained", _DEPLOYMENT ),
        Trait.NEEDS_A_PERSON)
    FLAG_NOT_EDITABLE = row("FlagNotEditable", "The flag stands where it cannot be edited safely.",
        Remedy("to see where the flags stand", _FLAGS), Trait.NEEDS_A_PERSON)
    CONFIG_MAP_UNAVAILABLE = row("ConfigMapUnavailable",
        "The ConfigMap with the engine's configuration file cannot be read or cannot be copied.",
        Remedy("to see which ConfigMaps and quotas there are",
               "kubectl -n $namespace get configmaps,resourcequotas --show-labels"), Trait.NEEDS_A_PERSON)
    FLAG_UNKNOWN_TO_ENGINE = row("FlagUnknownToEngine",
        "It is unknown whether the engine's version has the flag.",
        Remedy("to name the engine's version beside the digest, which replaces every replica undrained",
               "kubectl -n $namespace set image deployment/$target CONTAINER=IMAGE:vVERSION@DIGEST"),
        Trait.NEEDS_A_PERSON)
    ENGINE_UNRECOGNISED = row("EngineUnrecognised", "The target container does not run a known engine.",
        Remedy("to see what is recognised", _FLAGS), Trait.NEEDS_A_PERSON)
    ENGINE_NOT_SUPPORTED = row("EngineNotSupported",
        "The target container runs an engine that kvmedic cannot change.", Trait.NEEDS_A_PERSON)
    FIXES_EXHAUSTED = row("FixesExhausted",
        "Every fix that spec.compression.allowedFixes lists was tried.", Trait.NEEDS_A_PERSON)
    TRIAL_IMPOSSIBLE = row("TrialImpossible", "No trial pod can be created from the target's pod template.",
        Trait.NEEDS_A_PERSON, Trait.TRIAL_FAILED)
    GATE_MISSING = row("GateMissing",
        "A changed cache policy must pass an evaluation first, and none can run.", Trait.NEEDS_A_PERSON)
    ACCURACY_NOT_YET_KNOWN = row("AccuracyNotYetKnown",
        "The evaluation has too few samples to say whether accuracy is kept.", Trait.NEEDS_A_PERSON)
    RUNBOOK_SWITCHED_TWICE = row("RunbookSwitchedTwice",
        "Both runbooks changed this pod template and it did not help; neither gets the fleet a second time.",
        Remedy("to start again with another spec", _EDIT), Trait.NEEDS_A_PERSON)
    # What a plan does.
    CAP_RIGHT_SIZED = row("CapRightSized",
        "The cap follows from the measured lengths and the pool, within the lever's bounds.")
    MEMORY_STEPPED_DOWN = row("MemorySteppedDown", "The engine gets one step less of its GPUs' memory.")
    CAP_RAISED = row("CapRaised", "The cap on running sequences is raised to what the KV cache holds.")
    CAP_TAKEN_BACK = row("CapTakenBack",
        "The cap on running sequences goes back to what it was before kvmedic changed it.")
    SETTING_ADJUSTED = row("SettingAdjusted", "A setting is changed to fit the window's traffic.")
    MEMORY_STEPPED_UP = row("MemorySteppedUp",
        "The engine gets one step more of its GPUs' memory, which was free.")
    HOST_MEMORY_USED = row("HostMemoryUsed",
        "Preempted sequences are kept in host memory for a while.")
    HOST_MEMORY_GIVEN_BACK = row("HostMemoryGivenBack",
        "Host memory that was used for a while is released.")
    REPLICAS_ADDED = row("ReplicasAdded", "Replicas are added for a while, until fewer carry the load.")
    REPLICAS_GIVEN_BACK = row("ReplicasGivenBack",
        "Replicas that were added for a while are drained and removed, one by one.")
    COMPRESSION_REVERTED = row("CompressionReverted",
        "KV compression is turned off again, with every setting that turned it on.")
    TRIAL_RUNNING = row("TrialRunning", "A trial pod tests what the fleet's own readings cannot show.")
    ACCURACY_EVALUATED = row("AccuracyEvaluated",
        "An evaluation of a trial pod shows whether accuracy is kept.")
    FIX_TURNED_ON = row("FixTurnedOn",
        "A setting that a trial pod proved replaces the one that saved nothing.")
    # Why what was added for a while is still there.
    TEMPORARY_CHANGE_HELD = row("TemporaryChangeHeld",
        "A temporary change stays until the fleet is calm and can do without it.",
        Remedy("to restore it by hand, undrained", _DEPLOYMENT))
    TEMPORARY_CHANGE_FORGOTTEN = row("TemporaryChangeForgotten",
        "Someone else set the value of a temporary change; it is left alone.")
    # Why a fleet cannot be changed safely.
    TARGET_NOT_FOUND = row("TargetNotFound", "The target Deployment or its container does not exist.",
        Remedy("to see what there is", "kubectl -n $namespace get deployments -o wide" ),
        Trait.NEEDS_A_PERSON)
    SPEC_INVALID = row("SpecInvalid", "The spec is invalid, or this version cannot follow it.",
        Remedy("to correct the spec", _EDIT), Trait.NEEDS_A_PERSON, Trait.STALLS)
    STRATEGY_UNSUPPORTED = row("StrategyUnsupported",
        "A rollout under way cannot be turned, as the Deployment's strategy is not RollingUpdate.",
        Remedy("to see its end", "kubectl -n $namespace rollout status deployment/$target" ),
        Trait.NEEDS_A_PERSON)
    KIND_UNSUPPORTED = row("KindUnsupported", "The step is not made on the target's kind of workload.",
        Trait.NEEDS_A_PERSON)
    TARGET_PAUSED = row("TargetPaused", "The Deployment is paused by someone else.",
        Remedy("to resume its rollout, undrained",
               "kubectl -n $namespace rollout resume deployment/$target" ), Trait.NEEDS_A_PERSON)
    NO_REPLICAS = row("NoReplicas", "The Deployment is scaled to zero.", Remedy("to let it serve", _SCALE))
    TARGET_NOT_SETTLED = row("TargetNotSettled", "The Deployment is in the middle of another change.",
        Remedy("to watch it settle", "kubectl -n $namespace rollout status deployment/$target" ))
    OWNED_BY_CONTROLLER = row("OwnedByController",
        "Another controller owns the Deployment and would revert a change.", _PROPOSAL, Trait.NEEDS_A_PERSON)
    MANAGED_BY_GITOPS = row("ManagedByGitOps",
        "A GitOps tool applies the Deployment and would revert a change.", _PROPOSAL, Trait.NEEDS_A_PERSON)
    MANAGED_BY_HELM = row("ManagedByHelm",
        "A Helm release owns the Deployment; its next upgrade would revert a change.", _PROPOSAL,
        Trait.NEEDS_A_PERSON)
    TEMPLATE_CONTESTED = row("TemplateContested",
        "Someone else reverted a change of this pod template; nothing more is tried.", _PROPOSAL,
        Trait.NEEDS_A_PERSON)
    MANAGED_BY_VPA = row("ManagedByVerticalPodAutoscaler",
        "A VerticalPodAutoscaler evicts the target's pods and changes their size.", Trait.NEEDS_A_PERSON)
    AUTOSCALER_ACTIVE = row("AutoscalerActive", "An autoscaler is changing the number of replicas.")
    ROTATION_LABEL_UNUSABLE = row("RotationLabelUnusable",
        "The rotation label, or its draining value, is already used for something else.",
        Remedy("to name another label or value", _EDIT), Trait.NEEDS_A_PERSON)
    ROTATION_LABEL_WITHOUT_EFFECT = row("RotationLabelWithoutEffect",
        "No Service selects by the rotation label, so it takes no replica out of rotation.",
        Remedy("to see what the Services select", "kubectl -n $namespace get services -o wide" ),
        Trait.NEEDS_A_PERSON)
    DRAIN_IMPOSSIBLE = row("DrainImpossible",
        "No replica can be drained here without a rotation label.",
        Remedy("to see what the Services select", "kubectl -n $namespace get services -o wide" ),
        Trait.NEEDS_A_PERSON)
    CLAIMED_BY_ANOTHER = row("ClaimedByAnother",
        "Another resource or an earlier run holds the claim on the target.",
        Remedy("to see whose claim it is", _NOTES), Trait.NEEDS_A_PERSON)
    REPLICAS_AUTOSCALED = row("ReplicasAutoscaled",
        "An autoscaler decides the number of replicas and would take the spare away.", Trait.NEEDS_A_PERSON)
    TARGET_SHARED = row("TargetShared", "An older KVRemediation has the same target.",
        Remedy("to leave the target to the older one", "kubectl -n $namespace delete kvr $name" ),
        Trait.NEEDS_A_PERSON)
    SPARE_UNSCHEDULABLE = row("SpareUnschedulable", "The spare replica could not be scheduled.",
        Remedy("to see what the scheduler lacks",
               "kubectl -n $namespace get events --field-selector=reason=FailedScheduling"),
        Trait.NEEDS_A_PERSON, Trait.UNTRIED, Trait.TRIAL_FAILED)
    NO_ROOM_FOR_SPARE = row("NoRoomForSpare", "No node or quota has room for the spare replica.",
        Remedy("to see what is taken",
               "kubectl -n $namespace describe resourcequotas; kubectl describe nodes"),
        Trait.NEEDS_A_PERSON)
    NO_HEADROOM = row("NoHeadroom",
        "There is no room for a spare, and the other replicas are not predicted to carry the load.",
        Remedy("to see what is taken",
               "kubectl -n $namespace describe resourcequotas; kubectl describe nodes"),
        Trait.NEEDS_A_PERSON)
    SPARE_NEEDED = row("SpareNeeded", "The change needs a spare replica, and none can be made.",
        Remedy("to allow a spare", "kubectl -n $namespace edit kvr $name"),
        Trait.NEEDS_A_PERSON)
    REVISION_GONE = row("RevisionGone", "No ReplicaSet has the other revision's pod template any more.",
        _REVISIONS, Trait.NEEDS_A_PERSON)
    REVISION_UNREACHABLE = row("RevisionUnreachable",
        "Replicas of the previous revision have labels that a current Service does not select.",
        Remedy("to see what the Services select", "kubectl -n $namespace get services -o wide" ),
        Trait.NEEDS_A_PERSON)
    # Gates.
    SUSPENDED = row("Suspended", "The resource is suspended.", Remedy("to go on", _patch('"suspend":false')))
    STOPPED = row("Stopped", "The operator-wide stop is on.",
        Remedy("to go on everywhere", "kubectl -n $operator delete configmap $stop"))
    STOP_UNREADABLE = row("StopUnreadable", "The operator-wide stop could not be read, so it counts as on.",
        Remedy("to see why", _LOGS))
    OBSERVE_ONLY = row("ObserveOnly", "The mode is Observe: the plan is shown and nothing is changed.",
        Remedy("to have the plan carried out", _patch('"mode":"Auto"')))
    NAMESPACE_NOT_LABELLED = row("NamespaceNotLabelled",
        "The namespace lacks the label that the configuration asks for: its fleets are only diagnosed.",
        Remedy("to let fleets of the namespace be changed; the message has the label",
            "kubectl label --overwrite namespace $namespace LABEL=VALUE"))
    IN_COOLDOWN = row("InCooldown", "The cooldown after the last run is not over.",
        Remedy("to wait less", _patch('"limits":{"cooldown":"10m"}')))
    BUDGET_EXHAUSTED = row("BudgetExhausted", "The day's runs are used up.",
        Remedy("to allow more", _patch('"limits":{"maxRunsPerDay":10}')))
    OUTSIDE_WINDOWS = row("OutsideWindows", "No run is opened outside of the spec's windows.",
        Remedy("to change the windows", _EDIT))
    TOO_FEW_HEALTHY = row("TooFewHealthy", "Fewer replicas are healthy than the spec demands.",
        Remedy("to see which are not Ready", "kubectl -n $namespace get pods -o wide" ))
    AWAITING_APPROVAL = row("AwaitingApproval",
        "The mode is Approve: the plan waits until a person approves it.", _APPROVE, Trait.NEEDS_A_PERSON,
        Trait.ASKS_APPROVAL)
    APPROVAL_EXPIRED = row("ApprovalExpired",
        "There is an approval, but not for the present plan.", _APPROVE,
        Trait.NEEDS_A_PERSON, Trait.ASKS_APPROVAL)
    APPROVALS_UNREADABLE = row("ApprovalsUnreadable", "Approvals could not be read, so none counts.",
        Remedy("to install what is missing", "kvmedic crd | kubectl apply -f -"), Trait.NEEDS_A_PERSON)
    RUNS_AT_LIMIT = row("RunsAtLimit",
        "As many runs are open as the operator's configuration allows at once.",
        Remedy("to see the open runs", "kubectl get kvr -A"))
    STORM_BREAKER_TRIPPED = row("StormBreakerTripped",
        "Several runs ended badly within a short time; no run is opened anywhere for a while.",
        Remedy("to see how the last runs ended", "kubectl get kvr -A -o yaml"), Trait.NEEDS_A_PERSON)
    # Where a run stands.
    PLANNED = row("Planned", "The plan is recorded and its first effect is next.")
    ROLLING_OUT = row("RollingOut", "The change is being rolled out, one replica at a time.")
    AWAITING_CANARY = row("AwaitingCanary", "The first new replica is starting beside all old ones.")
    DRAINING = row("Draining", "One replica is out of rotation and finishes its requests.")
    DRAIN_TIMED_OUT = row("DrainTimedOut", "No replica with requests in flight is removed; all of them "
        "serve.",
        Remedy("to remove them with their requests", _patch('"rollout":{"onDrainTimeout":"Proceed"}') ),
        Trait.NEEDS_A_PERSON)
    REQUESTS_STILL_ARRIVE = row("RequestsStillArrive",
        "A replica left every Service, and requests keep coming to it.",
        Remedy("to name the labels by which a router finds it", _EDIT), Trait.NEEDS_A_PERSON)
    AWAITING_REPLICA = row("AwaitingReplica", "The next new replica is starting.")
    REPLICA_NOT_STARTING = row("ReplicaNotStarting",
        "A new replica does not start; the replicas changed before it serve.",
        Remedy("to see what keeps it down",
               "kubectl -n $namespace get pods,events --sort-by=.metadata.name" ), Trait.NEEDS_A_PERSON)
    COMPARING_REPLICAS = row("ComparingReplicas",
        "New replicas are compared with old ones while both serve; the rollout waits.",
        Remedy("to let the rollout go on without the comparison", _patch('"verify":{"sideBySide":"Never"}')),
        Trait.SHOWS_FIGURES)
    REPLICAS_COMPARED = row("ReplicasCompared",
        "New replicas serve no worse than old ones; the rollout goes on.")
    NOT_COMPARABLE = row("NotComparable",
        "New and old replicas cannot be compared; the rollout goes on and is judged by before and after.")
    AWAITING_CONTROLLER = row("AwaitingController", "The Deployment controller has not acted yet.")
    AWAITING_EVALUATION = row("AwaitingEvaluation", "The team's Job is evaluating a trial pod.")
    VERIFYING = row("Verifying", "All replicas run the change; its effect is being measured.")
    ROLLING_BACK = row("RollingBack", "The change is being taken back, one replica at a time.")
    HOLDING = row("Holding", "The run waits; the fleet serves with every replica.")
    # How a step or run ended.
    RECOVERED = row("Recovered", "The trouble is gone at comparable load, and throughput held.", Trait.HELPED,
        Trait.KEPT, Trait.GOOD_END)
    IMPROVED = row("Improved", "Clearly better at comparable load, but the trigger is still exceeded or "
        "an objective missed.",
        Trait.HELPED, Trait.KEPT, Trait.GOOD_END)
    KEPT_BY_HAND = row("KeptByHand", "A person asked for the change to stay, without a verdict.", Trait.KEPT,
        Trait.GOOD_END)
    KEPT_UNJUDGED = row("KeptUnjudged",
        "There was no verdict in time, and spec.verify.onInconclusive keeps the change.",
        Trait.NEEDS_A_PERSON, Trait.KEPT)
    NOT_RECOVERED = row("NotRecovered", "No better, or worse, at comparable load.", Trait.NEEDS_A_PERSON,
        Trait.BAD_END, Trait.FAILED, Trait.RESTORE_FAILED)
    INCONCLUSIVE = row("Inconclusive", "The evidence does not allow a verdict.", Trait.NEEDS_A_PERSON,
        Trait.BAD_END)
    TRIAL_ANSWERED = row("TrialAnswered",
        "A trial answered its question; no setting of the fleet was changed.", Trait.UNTRIED, Trait.GOOD_END)
    TRIAL_UNANSWERED = row("TrialUnanswered",
        "A trial did not answer its question; no setting of the fleet was changed.", Trait.UNTRIED,
        Trait.TRIAL_FAILED)
    CANARY_FAILED = row("CanaryFailed",
        "The first new replica did not start; every old one was left alone.",
        Remedy("to see why it did not start", "kubectl -n $namespace get events --sort-by=.lastTimestamp" ),
        Trait.NEEDS_A_PERSON, Trait.BAD_END, Trait.FAILED, Trait.RESTORE_FAILED)
    IMAGE_UNAVAILABLE = row("ImageUnavailable",
        "A new replica's image was not there in time; that says nothing about the change, which was undone.",
        Remedy("to see why it cannot be pulled",
               "kubectl -n $namespace get events --field-selector=reason=Failed"),
        Trait.NEEDS_A_PERSON, Trait.UNTRIED)
    REPLACEMENT_CALLED_OFF = row("ReplacementCalledOff",
        "The replica could not be replaced safely; it was left in rotation and the spare was removed.",
        Trait.NEEDS_A_PERSON)
    AUTOSCALER_IDLE = row("AutoscalerIdle", "The autoscaler did not follow its own minimum.",
        Remedy("to see what it is waiting for", "kubectl -n $namespace describe horizontalpodautoscalers" ),
        Trait.NEEDS_A_PERSON)
    OWNER_IDLE = row("OwnerIdle",
        "The owner's controller did not render its object's new value into the Deployment.",
        Remedy("to see the owner and its object", "kubectl -n $namespace get deployment $target -o yaml"),
        Trait.NEEDS_A_PERSON, Trait.FAILED)
    REPLICAS_CHANGED = row("ReplicasChanged",
        "Someone else changed the number of replicas; it was left alone and the run ended.",
        Trait.REPLICAS_TAKEN)
    FLAG_DRIFTED = row("FlagDrifted",
        "Someone else changed the pod template; it was left alone and the run ended.",
        Remedy("to see the changes", "kubectl -n $namespace rollout history deployment/$target" ),
        Trait.NEEDS_A_PERSON)
    CHANGE_REVERTED = row("ChangeReverted",
        "Someone else put the old setting back during the run; it was left alone.",
        Trait.NEEDS_A_PERSON, Trait.BAD_END)
    CONFIG_MAP_CHANGED = row("ConfigMapChanged",
        "Someone else changed the ConfigMap during the run; the run's own change was taken back.",
        Remedy("to see who changed it",
               "kubectl -n $namespace get configmaps -o yaml --show-managed-fields" ))
    CHANGE_REFUSED = row("ChangeRefused",
        "The API server refuses the run's next write; the run waits until it is allowed.",
        Remedy("to see which policies there are",
               "kubectl get validatingadmissionpolicybindings,validatingwebhookconfigurations"),
        Trait.NEEDS_A_PERSON)
    ROLLOUT_CONTESTED = row("RolloutContested",
        "Someone else keeps setting the frozen rollout's fields; the rollout is held paused.",
        Remedy("to see who sets it",
               "kubectl -n $namespace get deployment $target --show-managed-fields -o yaml" ),
        Trait.NEEDS_A_PERSON)
    SCALED_TO_ZERO = row("ScaledToZero", "The Deployment was scaled to zero during the run.",
        Remedy("to let it serve again", _SCALE), Trait.NEEDS_A_PERSON, Trait.REPLICAS_TAKEN)
    FLEET_GIVEN_BACK = row("FleetGivenBack",
        "No record has the run that froze the fleet; it is unfrozen as the note on its Deployment says.")
    FENCE_LOST = row("FenceLost",
        "Another operator or resource moved the target; this run ended without touching it.",
        Remedy("to see whose claim it is", _NOTES), Trait.NEEDS_A_PERSON, Trait.BAD_END)
    ABANDONED = row("Abandoned", "The resource was deleted with the request to leave the change in place.")
    RESOURCE_DELETED = row("ResourceDeleted", "The resource was deleted, and the change was taken back.")
    ROLLED_BACK_BY_HAND = row("RolledBackByHand",
        "A person asked for the change to be taken back, and it was.", Trait.RESTORE_FAILED)
    TARGET_DELETED = row("TargetDeleted", "The target Deployment was deleted during the run.",
        Trait.REPLICAS_TAKEN)
    # How urgent it is.
    OBJECTIVE_BREACHED = row("ObjectiveBreached",
        "The fleet is in trouble and an objective of the spec is breached.")
    SERVED_TOO_LATE = row("ServedTooLate",
        "The fleet is in trouble, and under 70 % of its requests are served in time.")
    SERVED_IN_TIME = row("ServedInTime",
        "Most requests are served in time again; the fleet is in trouble still.")
    OBJECTIVES_MET = row("ObjectivesMet",
        "The fleet is in trouble and no objective of the spec is breached any more.")
    # The operator's own trouble.
    RUN_UNREADABLE = row("RunUnreadable",
        "The run recorded in the status cannot be read; nothing is done until a person looks.",
        Remedy("to read the record", "kubectl -n $namespace get kvr $name -o jsonpath='{.status.run}'" ),
        Trait.NEEDS_A_PERSON, Trait.STALLS)
    INTERNAL_ERROR = row("InternalError",
        "The operator hit an unexpected error; it does nothing until the next try.",
        Remedy("to see the error", _LOGS))
    # fmt: on


def reasons_with(trait: Trait) -> frozenset[Reason]:
    """Return every reason from which this follows."""
    return frozenset(reason for reason in Reason if trait in reason.traits)
