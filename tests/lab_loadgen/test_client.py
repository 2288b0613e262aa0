"""One client against a server that answers whatever a test wants."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from lab.loadgen.client import Ask, Client, base_url
from lab.loadgen.record import ConnectionMode, Outcome

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(text):
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(finish="null"):
    return chunk(f'{{"id":"c","choices":[{{"index":0,"text":" w","finish_reason":{finish}}}]}}')


def usage(tokens):
    return chunk(f'{{"id":"c","choices":[],"usage":{{"prompt_tokens":3,"completion_tokens":{tokens}}}}}')


DONE = chunk("[DONE]") + END
WAIT = object()


@asynccontextmanager
async def a_server(*answers):
    """Answer the n-th request with the n-th list of segments; WAIT lets the client see them one by one.

    Yields its URL, the requests that it has seen, and the connections that it has taken.
    """
    seen, connections, remaining = [], [], list(answers)

    async def serve(reader, writer):
        connections.append(writer)
        try:
            while remaining:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                seen.append((head, await reader.readexactly(length)))
                for segment in remaining.pop(0):
                    if segment is WAIT:
                        await asyncio.sleep(0.05)
                    else:
                        writer.write(segment)
                        await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen, connections


def ask(url, number=1):
    return Ask(url, number, prompt_tokens=3, max_tokens=4, prompt=b"1,2,3")


async def outcome_of(*segments, mode=ConnectionMode.FRESH, timeout_seconds=10):
    async with a_server(list(segments)) as (url, *_), Client("tiny", mode, timeout_seconds) as client:
        return await client.ask(ask(url))


async def test_each_event_is_a_token_and_each_wait_a_gap():
    record = await outcome_of(HEAD, token(), WAIT, token(), WAIT, token('"length"'), DONE)

    assert (record.outcome, record.tokens, len(record.gaps_ms)) == (Outcome.OK, 3, 2)
    assert all(gap >= 40 for gap in record.gaps_ms)
    assert record.started_at <= record.first_token_at <= record.ended_at


async def test_tokens_that_arrive_together_are_counted_apart_and_did_not_wait_for_each_other():
    record = await outcome_of(HEAD, token(), WAIT, token() + token() + token('"length"') + DONE)

    assert record.tokens == 4
    assert record.gaps_ms[0] >= 40
    assert record.gaps_ms[1:] == (0.0, 0.0)


@pytest.mark.parametrize("cut", [1, 8, 12, 40])
async def test_an_event_split_between_segments_is_one_token(cut):
    whole = token() + token('"length"') + DONE

    record = await outcome_of(HEAD + whole[:cut], WAIT, whole[cut:])

    assert (record.outcome, record.tokens) == (Outcome.OK, 2)


async def test_a_head_split_between_segments_is_read():
    record = await outcome_of(HEAD[:10], WAIT, HEAD[10:] + token(), DONE)

    assert (record.outcome, record.tokens) == (Outcome.OK, 1)


async def test_the_servers_own_count_stands():
    record = await outcome_of(HEAD, token(), token('"length"'), usage(5), DONE)

    assert (record.outcome, record.tokens, len(record.gaps_ms)) == (Outcome.OK, 5, 1)


async def test_the_role_of_a_chat_is_no_token():
    role = chunk('{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}')

    assert (await outcome_of(HEAD, role, token(), DONE)).tokens == 1


@pytest.mark.parametrize(
    ("segments", "outcome", "detail"),
    [
        ((HEAD, token(), chunk('{"error":{"code":500}}'), DONE), Outcome.ABORTED, "error event"),
        ((HEAD, token(), token('"abort"'), DONE), Outcome.ABORTED, "finish reason abort"),
        ((HEAD, DONE), Outcome.ABORTED, "abort after 0 tokens"),
        ((HEAD, token()), Outcome.ABORTED, "stream cut"),
        ((HEAD,), Outcome.ABORTED, "stream cut"),
        ((), Outcome.FAILED, "closed before an answer"),
        ((b"HTTP/1.1 503 Service Unavailable\r\n\r\nfull",), Outcome.FAILED, "HTTP 503"),
        ((b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n",), Outcome.FAILED, "HTTP 500"),
        ((b"what?\r\n\r\n",), Outcome.FAILED, "Bad status line"),
    ],
)
async def test_an_answer_that_is_none_is_called_by_its_name(segments, outcome, detail):
    record = await outcome_of(*segments)

    assert record.outcome is outcome
    assert detail in record.detail


async def test_nobody_listening_is_refused():
    async with a_server([]) as (url, *_):
        pass

    async with Client("tiny", ConnectionMode.FRESH, 10) as client:
        record = await client.ask(ask(url))

    assert record.outcome is Outcome.REFUSED


async def test_an_answer_that_never_ends_fails_in_time():
    record = await outcome_of(HEAD, token(), *[WAIT] * 40, timeout_seconds=0.2)

    assert (record.outcome, record.detail) == (Outcome.FAILED, "no end after 0.2 s")


async def test_a_request_says_what_is_asked_for():
    client = Client("tiny", ConnectionMode.FRESH, 10)
    async with a_server([HEAD, token(), DONE]) as (url, seen, _), client:
        await client.ask(ask(url))

    head, body = seen[0]
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert json.loads(body) == {
        "model": "tiny",
        "max_tokens": 4,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "prompt": [1, 2, 3],
    }


@pytest.mark.parametrize(("mode", "opened"), [(ConnectionMode.FRESH, 2), (ConnectionMode.KEEP_ALIVE, 1)])
async def test_a_connection_is_kept_or_not(mode, opened):
    answer = [HEAD, token(), DONE]
    async with a_server(answer, answer) as (url, seen, connections), Client("tiny", mode, 10) as client:
        records = [await client.ask(ask(url, number)) for number in (1, 2)]

    assert [record.outcome for record in records] == [Outcome.OK, Outcome.OK]
    assert (len(seen), len(connections)) == (2, opened)


async def test_a_kept_connection_that_was_closed_is_opened_again():
    async with Client("tiny", ConnectionMode.KEEP_ALIVE, 10) as client:
        async with a_server([HEAD, token(), DONE]) as (url, *_):
            first = await client.ask(ask(url))
            await asyncio.sleep(0.05)  # the server has nothing more to say and closes
        second = await client.ask(ask(url))

    assert first.outcome is Outcome.OK
    assert second.outcome is Outcome.REFUSED


@pytest.mark.parametrize(
    ("text", "url"), [("http://a.b:8000", "http://a.b:8000"), ("http://a.b/", "http://a.b")]
)
def test_requests_go_to_a_host_and_a_port(text, url):
    assert base_url(text) == url


@pytest.mark.parametrize("text", ["https://a", "a:80", ""])
def test_anything_but_plain_http_is_refused(text):
    with pytest.raises(ValueError, match="not an http"):
        base_url(text)


@pytest.mark.parametrize(
    ("segments", "left"),
    [
        ([HEAD, *[WAIT] * 8, token(), token('"length"'), DONE], 0),
        ([HEAD, token(), *[WAIT] * 8, token('"length"'), DONE], 1),
        ([HEAD, *[token(), WAIT, WAIT] * 4, token('"length"'), DONE], None),
    ],
    ids=["no first token", "no second one", "one after the other"],
)
async def test_a_client_leaves_once_it_has_seen_no_token_for_too_long(segments, left):
    async with a_server(segments) as (url, *_), Client("tiny", ConnectionMode.FRESH, 10, 0.25) as client:
        record = await client.ask(ask(url))

    if left is None:
        assert (record.outcome, record.tokens) == (Outcome.OK, 5)
    else:
        assert (record.outcome, record.tokens) == (Outcome.LEFT, left)
        assert record.ended_at - record.started_at < 0.4
    assert record.asked_tokens == 4
