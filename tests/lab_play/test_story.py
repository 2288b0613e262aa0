"""What a person hears of a play, and that its clients end with it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from kvmedic.api.status import record_to_wire
from kvmedic.model.compression import Keep
from kvmedic.model.status import Record
from kvmedic.model.trial import Answer, Question, Reclaim, Sample
from lab.cluster.api import until
from lab.cluster.traces import is_running
from lab.demo import LiveView, PlainView, memory_line
from lab.play.schema import FLEET, Stream
from lab.play.story import Notes, Scene, Story, View, shortened
from lab.play.traffic import Clients, command
from lab.play.witness import Witness
from lab_play.plays import a_status
from run_builder import NOW, OLD

READINGS = tuple(Sample(tokens, tokens / 16) for tokens in (4096, 8192, 16_384))
ANSWER = Answer(
    Question.RECLAMATION, OLD, "nothing came back", NOW, 1, Reclaim.NONE, READINGS, 16, Keep(share=0.1)
)
END = "16384 tokens fill 1024 blocks: 0 came back; predicted: Reclaims 921, Scattered 190, None 0"
TRIAL = {"step": {"kind": "TrialStep"}, "state": "RollingOut"}


def a_story(view: View, **status: Any) -> Story:
    witness = Witness(None, "a-namespace")  # type: ignore[arg-type]
    witness.chronicle.learn(a_status("BlocksNotFreed", **status))
    return Story(witness, view, 1)


def answered(*answers: Answer) -> dict[str, Any]:
    return {"answers": record_to_wire(Record(answers=answers), "")["answers"]}


def a_scene(elapsed: float = 3.0, **memory: float) -> Scene:
    return Scene(elapsed, "the fleet is watched", (), 1, 0.5, 100, 7, 0, memory)


def test_what_a_trial_showed_is_drawn_once():
    notes = Notes()
    story = a_story(notes, **answered(ANSWER))

    story.go_on(60)
    story.go_on(61)

    assert [line for line in notes.lines if END in line] == [f"   60.0  trial     {END}"]
    assert any("blocks that came back (" in line for line in notes.lines)


def test_a_trial_without_readings_is_not_drawn():
    notes = Notes()

    a_story(notes, **answered(Answer(Question.RECLAMATION, OLD, "", NOW, 1))).go_on(60)

    assert notes.lines == []


def test_a_method_is_named_when_the_play_begins_and_other_fleets_have_none():
    notes = Notes()
    story = a_story(notes)

    story.begin({"compression": {"method": "TOVA", "keepRatio": 0.1}})
    story.begin({"mode": "Auto"})

    assert notes.lines == ["    0.0  engine    TOVA evicts 90 % of all tokens"]


def test_pods_have_short_names():
    text = f"{FLEET}-77c9d54756-45zxm serves, {FLEET}-trial-20260301-025500 starts"

    assert shortened(text) == "45zxm serves, trial pod starts"


def test_an_open_trial_is_a_phase_of_its_own():
    now = a_story(Notes(), run={"id": "1", "steps": [TRIAL]}).scene(5, [], {f"{FLEET}-7f-45zxm": 160.0})

    assert now.phase.startswith("a trial pod, to which nobody leads requests")
    assert now.device_mib == {"45zxm": 160.0}


def test_a_plain_view_prints_the_picture_as_it_is_and_the_dashboard(capsys):
    view = PlainView()

    view.show(a_scene(a=160.0, b=160.4))
    view.draw(62, "trial", ("  o  ", "numbers"))

    said = capsys.readouterr().out.splitlines()
    assert said[1:] == [
        f"{'':17}GPU memory in use: a 160 MiB, b 160 MiB",
        " 1:02  trial       o  ",
        f"{'':17}numbers",
    ]
    assert memory_line(a_scene()) == ""


def test_a_live_view_shows_the_picture_for_a_while_and_leaves_it_behind(capsys):
    view = LiveView()

    view.add_line(1, "operator", "looks")
    view.show(a_scene(2.0))
    view.draw(62, "trial", ("  o  ", "numbers"))
    view.show(a_scene(63.0, a=160.0))
    view.show(a_scene(99.0, a=160.0))
    view.close()

    said = capsys.readouterr().out.splitlines()
    assert said[-3:] == [" 0:01  operator  looks", " 1:02  trial       o  ", f"{'':17}numbers"]


PLAY = """
import json, sys, time
from pathlib import Path
from lab.play.traffic import Clients
clients = Clients(json.loads(sys.argv[1]), Path(sys.argv[2]))
clients.start()
print(clients._process.pid, flush=True)
time.sleep(600)
"""
NOBODY = "http://127.0.0.1:9"
"""The discard port: nobody listens, so clients try again and again."""


def argv(file: Path) -> list[str]:
    return command(Stream(rate=1, lengths="10+10"), (NOBODY,), file)


def test_the_load_ends_with_a_play_that_is_killed(tmp_path):
    file = tmp_path / "requests.jsonl"
    arguments = [sys.executable, "-c", PLAY, json.dumps(argv(file)), str(file)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as play:
        sender = int(play.stdout.readline())
        until(file.read_text, 30, "a request was sent")

        play.send_signal(signal.SIGKILL)

    until(lambda: not is_running(sender), 10, "the load generator is gone")


def test_the_load_ends_when_it_is_asked_to(tmp_path):
    file = tmp_path / "requests.jsonl"
    clients = Clients(argv(file), file)
    clients.start()
    until(clients.records, 30, "a request was sent")

    clients.stop()
    clients.wait()

    assert clients._process.poll() == 1, "requests were lost: nobody listened"
    clients.require_alive()
