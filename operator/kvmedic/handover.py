"""What a person gives to the owner of a target, where the owner and not kvmedic makes the change.

The message of a condition holds the exact patch or command where it fits; one that does not fit is
left out whole, because half a patch is none, and `kvmedic plan` prints it.
"""

from __future__ import annotations

from kvmedic.core.config_map import FileEdit
from kvmedic.core.edit import TokenEdit
from kvmedic.core.owner import TemplateOwner
from kvmedic.core.plan import ConfigStep, FlagStep, Plan
from kvmedic.manifests.flags import Setting, setting_of
from kvmedic.manifests.proposals import Proposal, Wanted, proposal_for
from kvmedic.runbooks.planning import Workload

MESSAGE_BYTES = 1000
"""Bytes of a message, at most: an Event's note takes 1,024 (events.k8s.io/v1)."""


def handed_over(owner: TemplateOwner, namespace: str, workload: Workload, plan: Plan) -> Proposal | None:
    """Return what to give to an owner so that a plan's change is made; None where it is no flag's.

    Args:
        owner: who writes the pod template.
        namespace: of the target.
        workload: the engine in the target's pod template.
        plan: what would be done if nobody owned the template.
    """
    match plan.steps[0]:
        case FlagStep() | ConfigStep() as step:
            flag = workload.engine.profile.flag(step.knob)
        case _:
            return None
    wanted = None if flag is None or step.after is None else setting_of(flag, step.after, workload.engine)
    if not isinstance(wanted, Setting):
        return None
    target = step.target
    edit: TokenEdit | FileEdit = step.edit if isinstance(step, FlagStep) else step.file
    return proposal_for(owner, Wanted(target.kind, namespace, target.name, wanted, edit))


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
