"""How a step's ConfigMap and its copy stand, and what follows."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

import pytest

from kvmedic.model.config_edits import ConfigMap, Contents, Sight, Unseen
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Orphan, freeze_fields
from kvmedic.model.reasons import Reason
from kvmedic.rollout.config_copy import (
    CopyState,
    Files,
    SourceState,
    await_config_map,
    copying_move,
    files_of,
    find_copy_blocker,
    needs_source,
)
from kvmedic.rollout.moves import (
    AdoptPod,
    Claim,
    Cordon,
    CordonOrphan,
    DeletePod,
    Failed,
    Freeze,
    Hold,
    MakeCopy,
    MarkStandIn,
    Move,
    Pause,
    Pulse,
    Regain,
    Release,
    ReleasePod,
    Restore,
    Retarget,
    Revert,
    ScaleIn,
    ScaleOut,
    SetMinimum,
    SetOwnerField,
    Settled,
    Uncordon,
    Wait,
)
from run_builder import OWN_FIELDS, STEP, a_pod
from worlds.config_maps import CONTENTS, an_edit

EDIT = an_edit()
COPIED = EDIT.make_copy(CONTENTS)
AS_PLANNED, READY = ConfigMap(CONTENTS), ConfigMap(COPIED, for_target="uid")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (AS_PLANNED, SourceState.AS_PLANNED),
        (ConfigMap(Contents({"engine.yaml": "max-num-seqs: 64"})), SourceState.CHANGED),
        (ConfigMap(COPIED), SourceState.CHANGED),
        (Unseen.GONE, SourceState.GONE),
        (Unseen.UNREADABLE, SourceState.UNREADABLE),
    ],
)
def test_the_config_map_stands_by_what_is_in_it(source: Sight, expected: SourceState) -> None:
    assert files_of(EDIT, source, READY, "uid") == Files(expected, CopyState.READY)


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        (READY, CopyState.READY),
        (ConfigMap(COPIED, for_target="another"), CopyState.FOREIGN),
        (ConfigMap(COPIED), CopyState.FOREIGN),
        (ConfigMap(CONTENTS, for_target="uid"), CopyState.FOREIGN),
        (Unseen.GONE, CopyState.ABSENT),
        (Unseen.UNREADABLE, CopyState.FOREIGN),
    ],
)
def test_the_copy_counts_only_with_its_contents_and_our_label(copy: Sight, expected: CopyState) -> None:
    assert files_of(EDIT, AS_PLANNED, copy, "uid") == Files(SourceState.AS_PLANNED, expected)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("source", list(SourceState))
@pytest.mark.parametrize("copy", list(CopyState))
def test_the_copy_is_made_of_what_was_planned_on_and_nothing_else_is_touched(
    source: SourceState, copy: CopyState, *, begun: bool
) -> None:
    move = copying_move(EDIT, Files(source, copy), begun=begun)

    made = copy is CopyState.ABSENT and source is SourceState.AS_PLANNED
    assert (move == MakeCopy(EDIT)) == made
    if copy is CopyState.FOREIGN:
        assert isinstance(move, Failed if begun else Blocked)
        assert move.reason is Reason.CONFIG_MAP_UNAVAILABLE
        assert EDIT.copy in move.message
    elif not made:
        assert move is None


@pytest.mark.parametrize("source", list(SourceState))
def test_only_a_config_map_that_is_not_there_or_not_readable_hinders(source: SourceState) -> None:
    text = find_copy_blocker(EDIT, Files(source, CopyState.READY))

    assert bool(text) == (source in {SourceState.GONE, SourceState.UNREADABLE})
    assert "limits" in text or not text
    assert await_config_map(EDIT, Files(source, CopyState.READY)) == Wait(Reason.CONFIG_MAP_UNAVAILABLE, text)


POD, FIELDS = a_pod("a"), freeze_fields(max_unavailable=0, paused=True)
ORPHAN = Orphan(POD, is_owned=False, has_ended=False)
HELD: list[Move] = [
    Freeze(STEP.edit, FIELDS),
    Retarget(STEP.edit, FIELDS),
    Pulse(("a",), FIELDS),
    Cordon(POD),
    DeletePod(POD),
    ReleasePod(POD),
    MarkStandIn(POD),
    CordonOrphan(ORPHAN, ("app",), timedelta(minutes=5)),
]
"""One replica after the other makes room for one that reads the ConfigMap."""
MADE: list[Move] = [
    Uncordon(POD),
    AdoptPod(ORPHAN),
    Hold(STEP.edit, FIELDS),
    Pause(FIELDS),
    Revert(STEP.edit, OWN_FIELDS),
    Restore(OWN_FIELDS, 3),
    Release(OWN_FIELDS),
    Regain(STEP.edit, OWN_FIELDS, FIELDS),
    Wait(Reason.HOLDING, ""),
    Settled(),
    Failed(Reason.REPLICA_NOT_STARTING, ""),
    Blocked(Reason.TARGET_NOT_SETTLED, ""),
]
"""What serves goes on serving, and nothing is asked for that would have to start."""
OF_OTHER_STEPS = {Claim, ScaleOut, ScaleIn, SetMinimum, SetOwnerField}
"""A flag in a file comes to none of these."""


@pytest.mark.parametrize("move", HELD, ids=lambda move: type(move).__name__)
def test_a_move_toward_a_replica_that_reads_the_config_map_needs_it(move: Move) -> None:
    assert needs_source(move)


@pytest.mark.parametrize("move", MADE, ids=lambda move: type(move).__name__)
def test_a_move_that_keeps_replicas_or_ends_the_rollout_needs_no_config_map(move: Move) -> None:
    assert not needs_source(move)


def test_every_move_of_a_change_in_a_file_is_asked_whether_it_needs_the_config_map() -> None:
    assert {type(move) for move in (*HELD, *MADE)} == set(get_args(Move)) - OF_OTHER_STEPS
