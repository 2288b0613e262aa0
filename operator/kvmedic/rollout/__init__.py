"""What a run does next; pure. `row_of` is the table of the kinds of steps, one row a kind."""

from __future__ import annotations

from typing import assert_never

from kvmedic.model.plan import (
    BundleStep,
    EvaluationStep,
    FlagStep,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
    Step,
    TrialStep,
)
from kvmedic.rollout.frozen_rollout import template_row
from kvmedic.rollout.owners.field import owner_field_row
from kvmedic.rollout.replacement import replacement_row
from kvmedic.rollout.revision_rollback import revision_row
from kvmedic.rollout.scaling import scaling_row
from kvmedic.rollout.stateful.steps import ordinal_replacement_row, ordinal_scaling_row, unsupported_row
from kvmedic.rollout.stateful.walk import ordinal_row
from kvmedic.rollout.steps import StepRow, by_kind
from kvmedic.rollout.trial import trial_row


def row_of(step: Step) -> StepRow:
    """Return what a step does: by its own kind, and by that of the workload that it is asked about."""
    usual = _row_of_deployment(step)
    by_partition = _row_of_stateful_set(step, usual)
    return by_kind(usual, by_partition, _row_of_groups(step, by_partition))


def _row_of_deployment(step: Step) -> StepRow:
    match step:
        case FlagStep(through=field) if field is not None:
            return owner_field_row(step, field)
        case FlagStep() | BundleStep():
            return template_row(step)
        case RevisionStep():
            return revision_row(step)
        case ReplaceStep():
            return replacement_row(step)
        case ReplicasStep():
            return scaling_row(step)
        case TrialStep() | EvaluationStep():
            return trial_row()
        case _:
            assert_never(step)


def _row_of_stateful_set(step: Step, usual: StepRow) -> StepRow:
    match step:
        case FlagStep() | BundleStep() | RevisionStep():
            return ordinal_row(step)
        case ReplaceStep():
            return ordinal_replacement_row(usual, step)
        case ReplicasStep():
            return ordinal_scaling_row(usual, step)
        case TrialStep() | EvaluationStep():
            return unsupported_row(usual, "a trial pod")
        case _:
            assert_never(step)


def _row_of_groups(step: Step, usual: StepRow) -> StepRow:
    match step:
        case RevisionStep():
            # Its controller keeps no revision but the present one; what a run left half done is given back.
            return unsupported_row(usual, "another revision")
        case ReplicasStep():
            return unsupported_row(usual, "another number of groups, each of several pods,")
        case FlagStep() | BundleStep() | ReplaceStep() | TrialStep() | EvaluationStep():
            return usual
        case _:
            assert_never(step)
