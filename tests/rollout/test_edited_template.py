from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from kvmedic.model.config_edits import Revision
from kvmedic.model.edits import BundleEdit, EnvEdit, Field, TokenEdit
from kvmedic.model.fleet import POD_TEMPLATE_HASH, ReplicaSet, template_hash
from kvmedic.model.plan import Step
from kvmedic.rollout.edited_template import without_our_change
from run_builder import BUNDLE, CONFIG, ROLLBACK, STEP, a_fleet

Template = dict[str, Any]
LINE = ["serve", "model", "--port=80", "--max-num-seqs=64", "--kv-cache-dtype=fp8", "--host=::"]
SCRIPT = ["exec vllm serve model --max-num-seqs 64 --port 80 && true"]


def a_template(*args: str) -> Template:
    env = [
        {"name": "CUDA", "value": "1"},
        {"name": "METHOD", "value": "on"},
        {"name": "LOG", "value": "$(CUDA)"},
    ]
    engine = {"name": "vllm", "image": "vllm:1", "args": list(args or LINE), "env": env}
    volumes = [{"name": "config", "configMap": {"name": "limits"}}, {"name": "cache", "emptyDir": {}}]
    spec = {
        "containers": [engine],
        "volumes": volumes,
        "tolerations": [{"key": "gpu"}, {"key": "gpu", "x": 1}],
    }
    return {"metadata": {"labels": {"app": "llm"}}, "spec": spec}


def token(index: int, before: str | None, after: str | None, at: int | None = None) -> TokenEdit:
    return TokenEdit("vllm", 0, Field.ARGS, index, before, after, at)


WITHIN = token(0, "64", "16", SCRIPT[0].index("64"))
METHOD_OFF = BundleEdit((token(4, "--kv-cache-dtype=fp8", None), EnvEdit("vllm", 0, "METHOD", 1, "on", None)))
CHANGES: dict[str, tuple[Step, Template]] = {
    "replaces a flag": (replace(STEP, edit=token(3, "--max-num-seqs=64", "--max-num-seqs=16")), a_template()),
    "adds a flag": (replace(STEP, edit=token(6, None, "--watermark=0.1")), a_template()),
    "removes a flag": (replace(STEP, edit=token(4, "--kv-cache-dtype=fp8", None)), a_template()),
    "changes a script": (replace(STEP, edit=WITHIN), a_template(*SCRIPT)),
    "changes a bundle": (replace(BUNDLE, edit=METHOD_OFF), a_template()),
    "copies a file": (CONFIG, a_template()),
    "takes a revision back": (ROLLBACK, a_template()),
}


def engine_of(template: Template) -> dict[str, Any]:
    return next(each for each in template["spec"]["containers"] if each["name"] == "vllm")


def edited(act: Callable[[Template], object]) -> Callable[[Template], Template]:
    def edit(template: Template) -> Template:
        changed = deepcopy(template)
        act(changed)
        return changed

    return edit


def flags_first(template: Template) -> None:
    line = engine_of(template)["args"]
    line[:] = [f"set -x; {line[0]}"] if len(line) == 1 else [line[0], line[1], "--seed=1", *line[2:]]


EDITS: dict[str, Callable[[Template], Template]] = {
    "sets the image": edited(lambda t: engine_of(t).update(image="vllm:2")),
    "restarts": edited(
        lambda t: t["metadata"].update(annotations={"kubectl.kubernetes.io/restartedAt": "now"})
    ),
    "adds a variable": edited(lambda t: engine_of(t)["env"].insert(0, {"name": "NEW", "value": "1"})),
    "changes a variable": edited(lambda t: engine_of(t)["env"][0].update(value="2")),
    "adds a flag before": edited(flags_first),
    "adds a sidecar before": edited(lambda t: t["spec"]["containers"].insert(0, {"name": "proxy"})),
    "adds a volume": edited(lambda t: t["spec"]["volumes"].insert(0, {"name": "new", "emptyDir": {}})),
    "drops the tolerations": edited(lambda t: t["spec"].pop("tolerations")),
    "puts the very revision back": edited(lambda t: None),
}


def rolled(change: str) -> tuple[Step, Template, Template]:
    """A step with the hashes of its templates, and the templates before and after."""
    step, before = CHANGES[change]
    if step is ROLLBACK:
        after = edited(lambda t: engine_of(t).update(image="vllm:0", args=[*LINE[:3], "--max-num-seqs=32"]))(
            before
        )
        there, back = Revision(1, "before", template_hash(before)), Revision(2, "after", template_hash(after))
        return replace(ROLLBACK, before=there, after=back), before, after
    after = step.edit.apply(before)  # type: ignore[union-attr]
    hashes = {"before_template": template_hash(before), "after_template": template_hash(after)}
    return replace(step, **hashes), before, after  # type: ignore[arg-type]


def taken_out(step: Step, live: Template, **kept: Template) -> object:
    """What becomes of an edited template while ReplicaSets keep those templates."""
    sets = tuple(
        ReplicaSet(name, template_hash(each), 1, 1, 1, 0, observed=True) for name, each in kept.items()
    )
    label = {POD_TEMPLATE_HASH: "7c"}
    labelled = {
        name: {**each, "metadata": {**each["metadata"], "labels": {**each["metadata"]["labels"], **label}}}
        for name, each in kept.items()
    }
    return without_our_change(step, a_fleet(replica_sets=sets, revision=template_hash(live)), live, labelled)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("change", CHANGES)
def test_the_runs_change_is_taken_out_of_what_somebody_edited(change: str, edit: str) -> None:
    step, before, after = rolled(change)

    merged = taken_out(step, EDITS[edit](after), before=before, after=after)

    assert merged == (EDITS[edit](before) if edit != "puts the very revision back" else None)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("change", CHANGES)
def test_an_edit_without_the_runs_change_is_left_alone(change: str, edit: str) -> None:
    step, before, after = rolled(change)

    assert taken_out(step, EDITS[edit](before), before=before, after=after) is None


@pytest.mark.parametrize("kept", ["before", "after"])
def test_one_template_yields_the_other_where_a_step_changes_places(kept: str) -> None:
    step, before, after = rolled("changes a bundle")
    live = EDITS["restarts"](after)

    assert taken_out(step, live, **{kept: {"before": before, "after": after}[kept]}) == EDITS["restarts"](
        before
    )


def test_what_no_replica_set_keeps_is_not_guessed() -> None:
    rollback, _, after = rolled("takes a revision back")
    flag, _, capped = rolled("replaces a flag")

    assert taken_out(rollback, EDITS["restarts"](after), after=after) is None
    assert taken_out(flag, EDITS["restarts"](capped)) is None


@pytest.mark.parametrize(
    ("theirs", "left"),
    [
        pytest.param(["--max-num-seqs=8"], ["--max-num-seqs=8"], id="they set it to a value of their own"),
        pytest.param([], [], id="they removed it"),
        pytest.param(["--max-num-seqs=16", "--new"], ["--max-num-seqs=64", "--new"], id="they added another"),
    ],
)
def test_where_both_changed_one_place_theirs_counts(theirs: list[str], left: list[str]) -> None:
    step, before, after = rolled("replaces a flag")
    live = a_template(*LINE[:3], *theirs, *LINE[4:])

    merged = taken_out(step, live, before=before, after=after) or live

    assert merged == a_template(*LINE[:3], *left, *LINE[4:])


@pytest.mark.parametrize("value", ["on", "theirs"])
def test_a_bundle_of_which_somebody_sets_a_part_is_theirs_as_a_whole(value: str) -> None:
    step, before, after = rolled("changes a bundle")
    live = edited(lambda t: engine_of(t)["env"].insert(1, {"name": "METHOD", "value": value}))(after)

    assert taken_out(step, live, before=before, after=after) is None
