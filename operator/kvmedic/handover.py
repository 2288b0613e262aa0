"""What a person gives to the owner of a target, where the owner and not kvmedic makes the change.

The message of a condition holds the exact patch or command where it fits; one that does not fit is
left out whole, because half a patch is none, and `kvmedic plan` prints it.
"""

from __future__ import annotations

from kvmedic.core.bundle import BundleStep
from kvmedic.core.config_map import FileEdit
from kvmedic.core.edit import TokenEdit
from kvmedic.core.owner import TemplateOwner
from kvmedic.core.plan import ConfigStep, FlagStep, Plan, RevisionStep
from kvmedic.engines import ENGINES
from kvmedic.manifests.bundle_proposals import bundle_proposal_for
from kvmedic.manifests.flags import Setting, setting_of
from kvmedic.manifests.proposals import Proposal, Wanted, proposal_for
from kvmedic.manifests.reverts import Reverted, operations_between, revert_for
from kvmedic.manifests.revisions import Revised, Unreadable, differences, options_of_interest
from kvmedic.ports import View
from kvmedic.runbooks.planning import Workload

MESSAGE_BYTES = 1000
"""Bytes of a message, at most: an Event's note takes 1,024 (events.k8s.io/v1)."""


def handed_over(
    owner: TemplateOwner, namespace: str, workload: Workload, plan: Plan, view: View
) -> Proposal | None:
    """Return what to give to an owner so that a plan's change is made; None where it is no template's.

    Args:
        owner: who writes the pod template.
        namespace: of the target.
        workload: the engine in the target's pod template.
        plan: what would be done if nobody owned the template.
        view: the target.
    """
    match plan.steps[0]:
        case FlagStep() | ConfigStep() as step:
            return _flag_of(owner, namespace, workload, step)
        case BundleStep() as step:
            return bundle_proposal_for(owner, namespace, step)
        case RevisionStep() as step:
            return _revision_of(owner, namespace, workload, step, view)
        case _:
            return None


def _flag_of(
    owner: TemplateOwner, namespace: str, workload: Workload, step: FlagStep | ConfigStep
) -> Proposal | None:
    flag = workload.engine.profile.flag(step.knob)
    wanted = None if flag is None or step.after is None else setting_of(flag, step.after, workload.engine)
    if not isinstance(wanted, Setting):
        return None
    target = step.target
    edit: TokenEdit | FileEdit = step.edit if isinstance(step, FlagStep) else step.file
    return proposal_for(owner, Wanted(target.kind, namespace, target.name, wanted, edit))


def _revision_of(
    owner: TemplateOwner,
    namespace: str,
    workload: Workload,
    step: RevisionStep,
    view: View,
) -> Proposal | None:
    earlier, container = view.templates.get(step.after.replica_set), str(workload.container.get("name"))
    if earlier is None:
        return None
    changed = differences(Revised(earlier, workload.template, view.config_maps), container, ENGINES)
    if isinstance(changed, Unreadable):
        return None
    names = options_of_interest(workload.engine.profile)
    patch = operations_between(workload.template, earlier, workload.container_index, names)
    target = step.target
    reverted = Reverted(target.kind, namespace, target.name, step.before, step.after, changed, patch)
    return revert_for(owner, reverted)


def advice(why: str, proposal: Proposal | None, command: str) -> str:
    """Return a sentence with the exact change behind it, in as many bytes as an Event may have.

    Args:
        why: the sentence.
        proposal: the change; None: there is none to tell.
        command: prints the change where it does not fit.
    """
    if proposal is None:
        return why
    whole = f"{why}: {proposal.how}\n{proposal.text}"
    return whole if len(whole.encode()) <= MESSAGE_BYTES else f"{why}; {command} prints the exact change"
