"""How a step's ConfigMap and its copy stand, and what follows."""

from __future__ import annotations

import pytest

from kvmedic.model.config_edits import ConfigMap, Contents, Sight, Unseen
from kvmedic.model.fleet import frozen
from kvmedic.model.reasons import Reason
from kvmedic.rollout.config_copy import (
    CopyState,
    Files,
    SourceState,
    await_config_map,
    copying_move,
    files_of,
    hindrance,
    needs_source,
)
from kvmedic.rollout.moves import (
    Cordon,
    DeletePod,
    Failed,
    MakeCopy,
    Pause,
    Pulse,
    Refused,
    Restore,
    Settled,
    Wait,
)
from run_builder import OWN_FIELDS, a_pod
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
        assert isinstance(move, Failed if begun else Refused)
        assert move.reason is Reason.CONFIG_MAP_UNAVAILABLE
        assert EDIT.copy in move.message
    elif not made:
        assert move is None


@pytest.mark.parametrize("source", list(SourceState))
def test_only_a_config_map_that_is_not_there_or_not_readable_hinders(source: SourceState) -> None:
    text = hindrance(EDIT, Files(source, CopyState.READY))

    assert bool(text) == (source in {SourceState.GONE, SourceState.UNREADABLE})
    assert "limits" in text or not text
    assert await_config_map(EDIT, Files(source, CopyState.READY)) == Wait(Reason.CONFIG_MAP_UNAVAILABLE, text)


def test_moves_after_which_a_replica_reads_the_config_map() -> None:
    pod, fields = a_pod("a"), frozen(max_unavailable=0, paused=True)
    needing = [Cordon(pod), DeletePod(pod), Pulse(("a",), fields)]

    assert all(needs_source(move) for move in needing)
    assert not any(needs_source(move) for move in [Pause(fields), Restore(OWN_FIELDS, 3), Settled()])
