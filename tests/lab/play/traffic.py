"""The clients: one process of the lab's load generator for each stream, and what they have written so far."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.cluster.machine import ROOT
from lab.cluster.process import REAPER
from lab.loadgen.record import Record
from lab.play.manifests import MODEL
from lab.play.schema import Route, Stream

LONGEST_SECONDS = 3600.0
"""Ends a load whatever becomes of the play; longer than all its limits together."""
GRACE_SECONDS = 90.0
"""For what is under way at the end: a few times the longest answer."""


class Clients:
    """One stream; each request is one line of a file as soon as it has ended.

    Its process ends with this one, however that dies.
    """

    def __init__(self, argv: list[str], file: Path) -> None:
        self._argv, self._file, self._log = argv, file, file.with_suffix(".log")
        self._file.write_text("", encoding="utf-8")
        self._read = 0
        self._records: list[Record] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._argv, stdout=log, stderr=log, env=env, cwd=ROOT, start_new_session=True
            )
        REAPER.watch(self._process.pid)

    def stop(self) -> None:
        """Send nothing more; what is under way may end. Does not wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until what is under way has ended, and the process with it."""
        if self._process is None:
            return
        try:
            self._process.wait(GRACE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            REAPER.forget(self._process.pid)

    def kill(self) -> None:
        """End the process now; what is under way is cancelled."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            REAPER.forget(self._process.pid)

    def require_alive(self) -> None:
        """Raise RuntimeError when the clients ended by themselves, before the time that they were given."""
        code = None if self._process is None else self._process.poll()
        if code not in (None, 0, 1):
            tail = self._log.read_text(encoding="utf-8")[-600:]
            raise RuntimeError(f"the load generator ended with exit code {code}: {tail}")

    def records(self) -> list[Record]:
        """Return every request that has ended so far."""
        with self._file.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._records.append(Record.from_line(line.decode()))
        return self._records


class Traffic:
    """All streams of a play, by their number in the file.

    With `picks` nothing but this process leads requests: those to the Service go to any replica in rotation.
    """

    def __init__(self, directory: Path, *, picks: bool = False) -> None:
        self._directory, self._picks = directory, picks
        self._targets = directory / "targets.txt"
        self._streams: dict[int, Clients] = {}

    def start(self, number: int, stream: Stream, urls: Mapping[Route, tuple[str, ...]]) -> None:
        """Begin one stream.

        Args:
            number: its number in the file.
            stream: what is sent.
            urls: by route, where all requests go; of `replica-first` the first one takes each client's first.
        """
        file = self._directory / f"requests-{number}.jsonl"
        clients = Clients([*command(stream, urls[stream.to], file), *self._led(stream)], file)
        self._streams[number] = clients
        clients.start()

    def lead(self, urls: Sequence[str]) -> None:
        """Write where requests may go now that no Service leads; keys are dealt out in this order."""
        if urls:
            written = self._targets.with_suffix(".new")
            written.write_text("\n".join(urls), encoding="utf-8")
            written.replace(self._targets)

    def _led(self, stream: Stream) -> list[str]:
        if stream.to is not Route.STICKY and not (self._picks and stream.to is Route.SERVICE):
            return []
        keys = stream.keys if stream.to is Route.STICKY else 0
        return ["--targets", str(self._targets), "--keys", str(keys)]

    def stop(self, number: int) -> None:
        """Begin no more requests of one stream."""
        self._streams[number].stop()

    def finish(self) -> None:
        for clients in self._streams.values():
            clients.stop()
        for clients in self._streams.values():
            clients.wait()

    def kill(self) -> None:
        for clients in self._streams.values():
            clients.kill()

    def require_alive(self) -> None:
        """Raise RuntimeError when a stream broke off by itself."""
        for clients in self._streams.values():
            clients.require_alive()

    def records(self) -> list[Record]:
        """Return every request that has ended so far, of all streams."""
        return [record for clients in self._streams.values() for record in clients.records()]


def command(stream: Stream, urls: tuple[str, ...], file: Path) -> list[str]:
    """Return the load generator's command line for a stream."""
    extra = ["--first-url", urls[0]] if stream.to is Route.REPLICA_FIRST else []
    extra += ["--keep-alive"] if stream.keep_alive else []
    extra += [] if stream.requests is None else ["--requests", str(stream.requests)]
    extra += [] if stream.patience is None else ["--patience", str(stream.patience)]
    options = {
        "--url": urls[-1],
        "--model": MODEL,
        "--lengths": stream.lengths,
        "--shared": stream.shared,
        "--groups": stream.groups,
        "--clients": stream.clients,
        "--kept": stream.kept,
        "--rate": stream.rate,
        "--seed": stream.seed,
        "--seconds": LONGEST_SECONDS,
        "--grace": GRACE_SECONDS,
        "--timeout": stream.timeout,
        "--out": file,
    }
    given = [str(part) for pair in options.items() for part in pair]
    return [sys.executable, "-m", "lab.loadgen", *given, *extra]
