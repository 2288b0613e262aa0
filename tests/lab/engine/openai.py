"""The OpenAI wire format as vLLM 0.32 speaks it: requests in, server-sent events and bodies out.

The lab's tokens are words: each whitespace-separated word of a text prompt is one token, a list of token
ids is itself, and each generated token is one word.
"""

import json
import time
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from lab.engine.requests import VOCABULARY

DEFAULT_MAX_TOKENS = 16
"""`max_tokens` of a completion that gives none (OpenAI's API, kept by vLLM)."""

TEMPLATE_TOKENS = 4
"""Tokens that the lab's chat template puts around each message; any small number would do."""

DONE = b"data: [DONE]\n\n"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
WORDS = [f" w{number}" for number in range(1000)]


class BadRequestError(ValueError):
    """The request is answered with 400 and this message."""


class UnknownModelError(ValueError):
    """The request names a model that is not served: 404."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a client asks for."""

    tokens: list[int]
    max_tokens: int
    model: str
    is_chat: bool
    streams: bool
    wants_usage: bool


def parse_generation(body: bytes, served: str, max_model_len: int, *, is_chat: bool) -> Generation:
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"body is not JSON: {error}") from None
    model = fields.get("model") or served
    if model != served:
        raise UnknownModelError(f"The model `{model}` does not exist.")
    if fields.get("n", 1) != 1:
        raise BadRequestError("n must be 1: the lab engine generates one answer per request")
    tokens = chat_tokens(fields.get("messages")) if is_chat else prompt_tokens(fields.get("prompt"))
    if len(tokens) >= max_model_len:
        raise BadRequestError(
            f"Input length ({len(tokens)}) exceeds model's maximum context length ({max_model_len})."
        )
    return Generation(
        tokens=tokens,
        max_tokens=_max_tokens(fields, max_model_len - len(tokens), is_chat=is_chat),
        model=served,
        is_chat=is_chat,
        streams=bool(fields.get("stream")),
        wants_usage=bool((fields.get("stream_options") or {}).get("include_usage")),
    )


def prompt_tokens(prompt: object) -> list[int]:
    if isinstance(prompt, str):
        return [crc32(word.encode()) % VOCABULARY for word in prompt.split()] or [0]
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return prompt
    raise BadRequestError("prompt must be one text or one list of token ids")


def chat_tokens(messages: object) -> list[int]:
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a list with at least one message")
    tokens: list[int] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str):
            raise BadRequestError("the content of each message must be a text")
        tokens += [*range(TEMPLATE_TOKENS), *prompt_tokens(content)]
    return tokens


def _max_tokens(fields: dict[str, Any], room: int, *, is_chat: bool) -> int:
    asked = fields.get("max_completion_tokens") or fields.get("max_tokens")
    if asked is None:
        asked = room if is_chat else DEFAULT_MAX_TOKENS
    if not isinstance(asked, int) or asked < 1:
        raise BadRequestError(f"max_tokens must be at least 1, got {asked}.")
    return min(asked, room)


class Writer:
    """Spells one request's answer; everything that does not change from token to token is spelt once."""

    def __init__(self, generation: Generation, request_id: str) -> None:
        self.generation = generation
        self._created = int(time.time())
        kind = "chat.completion.chunk" if generation.is_chat else "text_completion"
        self._identity = {
            "id": request_id,
            "object": kind,
            "created": self._created,
            "model": generation.model,
        }
        head = json.dumps(self._identity, separators=(",", ":"))[:-1]
        self._before = f'data: {head},"choices":[{{"index":0,'.encode()
        opening, closing = ('"delta":{"content":"', '"}') if generation.is_chat else ('"text":"', '"')
        self._open = self._before + opening.encode()
        self._close = closing.encode() + b',"logprobs":null,"finish_reason":null'
        self._close += b',"token_ids":null}]}\n\n' if generation.is_chat else b',"stop_reason":null}]}\n\n'

    def first_event(self) -> bytes:
        """Return the event that precedes the tokens of a chat; nothing for a completion."""
        if not self.generation.is_chat:
            return b""
        return (
            self._before
            + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def token_event(self, token: int, finish_reason: str | None) -> bytes:
        """Return the event for one token; the last one names why the answer ends."""
        event = b"%b%b%b" % (self._open, WORDS[token % 1000].encode(), self._close)
        if finish_reason is None:
            return event
        return event.replace(b'"finish_reason":null', f'"finish_reason":"{finish_reason}"'.encode())

    def abort_event(self) -> bytes:
        """Return what a stream carries that was refused before its first token.

        A chat gets an empty delta with the reason; a completion gets no event at all, because vLLM's stream
        generator skips chunks that are empty before the first token (openai/completion/serving.py 0.32).
        """
        if not self.generation.is_chat:
            return b""
        return self._before + b'"delta":{"content":""},"logprobs":null,"finish_reason":"abort"}]}\n\n'

    def usage_event(self, generated: int) -> bytes:
        """Return the final event with token counts, empty where the client did not ask for it."""
        if not self.generation.wants_usage:
            return b""
        final = {**self._identity, "choices": [], "usage": self._usage(generated)}
        return f"data: {json.dumps(final, separators=(',', ':'))}\n\n".encode()

    def body(self, tokens: list[int], finish_reason: str) -> bytes:
        """Return the whole answer of a request that does not stream."""
        text = "".join(WORDS[token % 1000] for token in tokens)
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        if self.generation.is_chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.generation.is_chat else "text_completion"
        whole = {**self._identity, "object": kind, "choices": [choice], "usage": self._usage(len(tokens))}
        return json.dumps(whole).encode()

    def _usage(self, generated: int) -> dict[str, int]:
        prompt = len(self.generation.tokens)
        return {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}


def error_body(message: str, kind: str, code: int) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


def model_list(served: str, root: str, max_model_len: int) -> bytes:
    card = {
        "id": served,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
    }
    return json.dumps({"object": "list", "data": [card]}).encode()
