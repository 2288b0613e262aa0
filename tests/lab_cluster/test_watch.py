"""What a watch tells, also of what happened while it was broken."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lab.cluster import watch
from lab.cluster.mirror import Mirror
from lab.cluster.watch import follow

PATH = "/api/v1/namespaces/default/pods"


def pod(uid: str, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "status": {"phase": phase}}


def listed(*pods: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json={"metadata": {"resourceVersion": "7"}, "items": pods})


def streamed(*events: tuple[str, dict[str, Any]]) -> httpx.Response:
    lines = (json.dumps({"type": kind, "object": body}) for kind, body in events)
    return httpx.Response(200, text="".join(f"{line}\n" for line in lines))


async def told(monkeypatch: pytest.MonkeyPatch, *answers: httpx.Response) -> list[tuple[str, str, str]]:
    """Return what is told until the answers are used up: the event, whose it is, and its phase."""
    monkeypatch.setattr(watch, "RETRY_SECONDS", 0)
    left: Iterator[httpx.Response] = iter(answers)
    heard: list[tuple[str, str, str]] = []
    over = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        response = next(left, None)
        if response is None:
            over.set()
            await asyncio.Event().wait()
            raise AssertionError("cancelled before")
        return response

    def tell(event: str, body: dict[str, Any]) -> None:
        heard.append((event, body["metadata"]["uid"], body["status"]["phase"]))

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
        following = asyncio.create_task(follow(http, PATH, tell, lambda: None))
        await asyncio.wait_for(over.wait(), 5)
        following.cancel()
    return heard


async def test_a_list_then_every_event_in_its_order(monkeypatch):
    events = streamed(("MODIFIED", pod("a", "Failed")), ("ADDED", pod("b")), ("DELETED", pod("a", "Failed")))

    heard = await told(monkeypatch, listed(pod("a")), events)

    assert heard == [
        ("ADDED", "a", "Running"),
        ("MODIFIED", "a", "Failed"),
        ("ADDED", "b", "Running"),
        ("DELETED", "a", "Failed"),
    ]


@pytest.mark.parametrize(
    "broken",
    [streamed(), streamed(("ERROR", {"code": 410})), httpx.Response(410)],
    ids=["ended", "too-old", "refused"],
)
async def test_what_went_during_a_break_is_told_as_deleted(monkeypatch, broken):
    heard = await told(monkeypatch, listed(pod("a"), pod("b")), broken, listed(pod("b", "Failed"), pod("c")))

    assert heard[2:] == [("ADDED", "b", "Failed"), ("ADDED", "c", "Running"), ("DELETED", "a", "Running")]


async def test_what_was_told_as_deleted_is_not_told_so_again(monkeypatch):
    heard = await told(monkeypatch, listed(pod("a")), streamed(("DELETED", pod("a"))), listed(pod("b")))

    assert heard == [("ADDED", "a", "Running"), ("DELETED", "a", "Running"), ("ADDED", "b", "Running")]


def test_a_mirror_holds_what_is_there_in_the_order_of_first_sight():
    seen: list[list[str]] = []
    mirror = Mirror(lambda held: seen.append(sorted(held)))

    for event, each in (
        ("ADDED", pod("b")),
        ("ADDED", pod("a")),
        ("MODIFIED", pod("b", "Failed")),
        ("DELETED", pod("a")),
        ("DELETED", pod("x")),
    ):
        mirror.tell(event, each)

    assert mirror.objects() == [pod("b", "Failed")]
    assert seen == [["b"], ["a", "b"], ["a", "b"], ["b"], ["b"]]
