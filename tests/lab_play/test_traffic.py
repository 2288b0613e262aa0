"""The clients of a play are processes of their own, and end with it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from lab.cluster.api import until
from lab.cluster.traces import is_running
from lab.play.schema import Stream
from lab.play.traffic import Clients, command

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
        assert play.stdout is not None
        sender = int(play.stdout.readline())
        until(file.read_text, 30, "a request was sent")

        play.send_signal(signal.SIGKILL)

    until(lambda: not is_running(sender), 10, "the load generator is gone")


def test_the_load_ends_when_it_is_told_to(tmp_path):
    file = tmp_path / "requests.jsonl"
    clients = Clients(argv(file), file)
    clients.start()
    until(clients.records, 30, "a request was sent")

    clients.stop()
    clients.wait()

    assert clients._process is not None
    assert clients._process.poll() == 1, "requests were lost: nobody listened"
    clients.require_alive()
