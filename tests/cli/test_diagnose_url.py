"""`kvmedic diagnose --url`: a running engine is looked at twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from kvmedic.cli import scraping
from worlds.http_double import Reply, Server
from worlds.saved_pages import IDLE, OTHER, THRASH, answer, diagnose

SOON = ("--interval", "50ms")


@contextmanager
def an_engine(*pages: str, status: int = 200) -> Iterator[Server]:
    """Serve one page after the other."""
    left = itertools.cycle(pages)
    with Server(lambda _: Reply(status, next(left).encode())) as server:
        yield server


@dataclass
class Clock:
    """A time that passes when somebody sleeps."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_two_looks_at_an_engine_lead_to_the_same_branch_as_saved_pages(monkeypatch):
    monkeypatch.setattr(scraping, "time", Clock())
    with an_engine(IDLE, THRASH) as engine:
        done = diagnose("--url", engine.url, "--interval", "5m", "-o", "json")

    found = answer(done)
    assert done.exit_code == 0
    assert (found["branch"], found["target"]) == ("FleetWideDemand", {"scrapes": engine.address})
    assert found["evidence"][engine.address]["preemptions"] == 338
    assert [request.path for request in engine.requests] == ["/metrics", "/metrics"]
    assert found["windowSeconds"] == 300
    assert "looking twice, 300 s apart" in done.stderr


def test_the_time_between_both_looks_is_the_one_that_passed():
    with an_engine(IDLE, THRASH) as engine:
        found = answer(diagnose("--url", engine.url, *SOON, "-o", "json"))

    assert 0 < found["windowSeconds"] < 30
    assert not any("by its own steps" in each for each in found["notes"])


def test_each_replica_has_its_name():
    with an_engine(IDLE, THRASH) as one, an_engine(IDLE, THRASH) as other:
        done = diagnose("--url", f"a={one.url}", "--url", f"b={other.url}/metrics", *SOON, "-o", "json")

    assert answer(done)["evidence"].keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("pages", "status", "code", "said"),
    [
        ((IDLE, IDLE), 200, 2, "the same scrape"),
        (("<html>",), 200, 2, "the same scrape"),
        (("<html>", "<p>"), 200, 2, "no metrics page"),
        (("",), 404, 2, "answers 404: give the URL of its /metrics page"),
        (("up 1\n", "up 2\n"), 200, 3, "MetricsMissing"),
        ((THRASH, OTHER), 200, 3, "different processes"),
    ],
    ids=["stands still", "one text", "a web page", "another path", "another page", "restarted"],
)
def test_what_is_no_engines_page_is_said_to_be_none(pages, status, code, said):
    with an_engine(*pages, status=status) as engine:
        done = diagnose("--url", engine.url, *SOON)

    assert done.exit_code == code, done.output
    assert said in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--url", "10.0.0.7:8000"), "write http://HOST:PORT"),
        (("--url", "ftp://x"), "write http://HOST:PORT"),
        (("--url", "http://[::1"), "write http://HOST:PORT"),
        (("--url", "a=http://x", "--url", "a=http://y"), "a is named twice"),
        (("--url", "http://127.0.0.1:1"), "cannot be reached"),
        (("--url", "http://user:hunter2@127.0.0.1:1"), "cannot be reached"),
        (("--url", "http://x", "--scrape", "y"), "say what to look at"),
        (("--log", "y", "chat"), "give --scrape or --url too"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else None,
)
def test_what_cannot_be_looked_at_is_said_in_a_sentence(arguments, said):
    done = diagnose(*arguments, *SOON)

    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert "hunter2" not in done.output
