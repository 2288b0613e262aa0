"""What a person is given for an owner: whole where it fits in an Event, and never half."""

from __future__ import annotations

import pytest

from kvmedic.controller.blockers import advice
from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.flags import Setting, setting_of
from kvmedic.manifests.proposals import DesiredSetting, Proposal, proposal_for
from kvmedic.model.edits import Field, TokenEdit
from kvmedic.model.engine import Engine, Version
from kvmedic.model.fleet import OwnerKind, TemplateOwner
from kvmedic.record.events import NOTE_LIMIT
from kvmedic.record.runs import MESSAGE_BYTES

COMMAND = "kvmedic plan chat -n ml"
WHY = "Argo CD Application prod decides what this Deployment looks like"


def proposal() -> Proposal:
    flag = next(flag for flag in VLLM.flags if flag.dest == "max_num_seqs")
    desired = setting_of(flag, 16, Engine(VLLM, Version.parse("0.32.0")))
    assert isinstance(desired, Setting)
    edit = TokenEdit("vllm", 0, Field.ARGS, 1, "--max-num-seqs=64", "--max-num-seqs=16")
    return proposal_for(
        TemplateOwner(OwnerKind.ARGO_CD, "prod"), DesiredSetting("Deployment", "ml", "chat", desired, edit)
    )


def test_a_change_that_fits_is_shown_whole() -> None:
    change = proposal()

    message = advice(WHY, change, COMMAND)

    assert message.startswith(WHY)
    assert message.endswith(f"{change.how}\n{change.text}")
    assert len(message.encode()) <= MESSAGE_BYTES < NOTE_LIMIT


@pytest.mark.parametrize(("more", "whole"), [(0, True), (1, False)], ids=["the last byte", "one byte more"])
def test_a_change_that_does_not_fit_is_left_out_whole(more: int, whole: bool) -> None:
    change = proposal()
    free = MESSAGE_BYTES - len(advice(WHY, change, COMMAND).encode()) + more
    why = WHY + "é" * (free // 2) + "e" * (free % 2)

    message = advice(why, change, COMMAND)

    assert (change.text in message) is whole
    assert whole or message == f"{why}; {COMMAND} prints the exact change"


def test_without_a_change_the_sentence_stands_alone() -> None:
    assert advice(WHY, None, COMMAND) == WHY
