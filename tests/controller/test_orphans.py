"""A frozen fleet that no record knows, and the run that its note makes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvmedic.cluster.ownership import Note, note_in, notes_on
from kvmedic.controller.orphans import run_that_gives_back
from kvmedic.kube.objects import NOTE_LENGTH
from kvmedic.model.edits import BundleEdit, Field, TokenEdit
from kvmedic.model.fleet import STILL, ReplicaSet, template_hash
from kvmedic.model.reasons import Reason
from kvmedic.model.run import StepState
from kvmedic.model.spec import RotationLabel
from kvmedic.rollout.drift import Standing, target_standing
from kvmedic.rollout.moves import Freeze
from run_builder import BUNDLE, CONFIG, EDIT, NOW, OWN_FIELDS, ROLLBACK, UID, a_fleet, a_pod

WITHIN = TokenEdit("vllm", 0, Field.COMMAND, 2, "64", None, 17)


def written(edit) -> str:
    return notes_on(a_fleet(), Freeze(edit, STILL))["kvmedic.io/recorded"]


LABEL = RotationLabel("serving", "draining")


@pytest.mark.parametrize(
    "edit",
    [EDIT, WITHIN, CONFIG.edit, replace(CONFIG.edit, source=1), BUNDLE.edit],
    ids=["a token", "a word", "a reference", "a projected one", "a bundle"],
)
def test_a_note_is_read_as_it_was_written(edit) -> None:
    assert note_in(written(edit)) == Note(OWN_FIELDS, edit, "", LABEL)


def test_a_note_of_a_whole_template_has_its_hash() -> None:
    assert note_in(written(ROLLBACK.template_change)) == Note(
        OWN_FIELDS, None, ROLLBACK.before.template, LABEL
    )


GOOD = json.loads(written(EDIT))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "no JSON",
        '{"replicas": 3, "pod": "a"}',
        json.dumps({**GOOD, "maxSurge": None}),
        json.dumps({**GOOD, "minReadySeconds": 2147483646, "progressDeadlineSeconds": 2147483647}),
        json.dumps({**GOOD, "before": 7}),
        json.dumps({**GOOD, "index": -1}),
        json.dumps({**GOOD, "progressDeadlineSeconds": "soon"}),
        json.dumps({**GOOD, "field": "image"}),
        json.dumps({**GOOD, "minReadySeconds": float("inf")}),
        json.dumps({**GOOD, "rotationLabel": "x" * NOTE_LENGTH}),
        "[" * 60_000,
        json.dumps({"parts": [7], **GOOD}),
    ],
)
def test_what_is_no_note_of_a_rollout_gives_nothing_back(text: str) -> None:
    assert note_in(text) is None


def template(args: list[str]) -> dict:
    return {"spec": {"containers": [{"name": "vllm", "args": args}]}}


BEFORE = template(["serve", "m", "--a", "--max-num-seqs=64"])
AFTER = template(["serve", "m", "--a", "--max-num-seqs=16"])
THEIRS = template(["serve", "m", "--max-num-seqs=32"])
OLD, NEW = template_hash(BEFORE), template_hash(AFTER)
NOTE = Note(OWN_FIELDS, EDIT, "")
SETS = (
    ReplicaSet("llm-old", OLD, 1, 2, 2, 0, observed=True),
    ReplicaSet("llm-new", NEW, 2, 2, 0, STILL.min_ready_seconds, observed=True),
)
MIXED = (a_pod("a", OLD), a_pod("b", OLD), a_pod("c", NEW), a_pod("d", NEW))


def frozen_fleet(body: dict, pods=MIXED, sets=SETS):
    fence = f"{UID}/20260101-000000/7"
    return a_fleet(revision=template_hash(body), fields=STILL, pods=pods, replica_sets=sets, fence=fence)


@pytest.mark.parametrize(
    ("body", "note"),
    [(AFTER, NOTE), (BEFORE, NOTE), (AFTER, Note(OWN_FIELDS, None, OLD))],
    ids=["the change is in force", "it was on its way back", "a whole template"],
)
def test_a_fleet_with_both_settings_is_walked_back_to_the_one_from_before(body: dict, note: Note) -> None:
    fleet = frozen_fleet(body)

    run = run_that_gives_back(fleet, body, note, 1, NOW)

    assert run.current.state is StepState.ROLLING_BACK
    assert run.current.step.before.replica_set == "llm-old"
    assert (run.current.step.before_template, run.current.step.after_template) == (OLD, NEW)
    assert run.recorded == OWN_FIELDS
    assert run.ending.reason is Reason.FLEET_GIVEN_BACK
    assert target_standing(run, UID, fleet) is Standing.AS_RECORDED


@pytest.mark.parametrize(
    ("body", "pods", "sets"),
    [(THEIRS, MIXED, SETS), (AFTER, MIXED[2:], SETS[1:])],
    ids=["the template is somebody's own", "every replica runs the change, and nothing keeps the earlier"],
)
def test_where_nothing_is_to_be_walked_only_the_fields_go_back(body: dict, pods, sets) -> None:
    run = run_that_gives_back(frozen_fleet(body, pods, sets), body, NOTE, 1, NOW)

    assert run.current.state is StepState.LEFT
    assert run.recorded == OWN_FIELDS


def test_with_both_settings_and_the_earlier_template_gone_nothing_is_touched() -> None:
    assert run_that_gives_back(frozen_fleet(AFTER, MIXED, SETS[1:]), AFTER, NOTE, 1, NOW) is None


def test_a_variable_alone_is_read_as_a_bundle_of_one() -> None:
    part = BUNDLE.edit.parts[0]
    said = json.loads(written(BUNDLE.edit))
    alone = json.dumps({**{k: v for k, v in said.items() if k != "parts"}, **said["parts"][0]})

    assert note_in(alone) == Note(OWN_FIELDS, BundleEdit((part,)), "", LABEL)
