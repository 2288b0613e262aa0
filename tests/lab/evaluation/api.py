"""The server under evaluation: its model's name and its answers. Nothing is ever sent twice."""

import json
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 300.0
"""For one answer: it may wait for its turn behind all others."""
SAID_CHARACTERS = 200
"""Of what a server says instead of an answer."""


class NoAnswerError(Exception):
    """A question was not answered to its end; the message says why."""


@dataclass(frozen=True, slots=True)
class Api:
    """An OpenAI-compatible server.

    Args:
        url: its base URL, as OpenAI's own clients take it, with `/v1` at its end or without.
        key: what it asks for; empty: nothing.
    """

    url: str
    key: str = ""

    def first_model(self) -> str:
        try:
            return str(self._asked("GET", "models")["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise NoAnswerError("the server names no model") from error

    def complete(self, model: str, prompt: tuple[int, ...], tokens: int) -> str:
        """Return the text of exactly so many tokens that follow a prompt."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = self._asked("POST", "completions", json.dumps(body))
        try:
            choice, generated = answer["choices"][0], answer["usage"]["completion_tokens"]
            text, reason = str(choice["text"]), choice["finish_reason"]
        except (KeyError, IndexError, TypeError) as error:
            raise NoAnswerError(f"no completion: {str(answer)[:SAID_CHARACTERS]}") from error
        if generated != tokens:
            raise NoAnswerError(f"{generated} of {tokens} tokens came, finish reason {reason}")
        return text

    def _asked(self, method: str, path: str, body: str | None = None) -> Any:
        """Return what the server answers, over a connection of its own."""
        url = urlsplit(self.url)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            base = url.path.rstrip("/").removesuffix("/v1")
            connection.request(method, f"{base}/v1/{path}", body, headers)
            response = connection.getresponse()
            said = response.read().decode(errors="replace")
            if response.status != 200:
                raise NoAnswerError(f"HTTP {response.status}: {said[:SAID_CHARACTERS]}")
            return json.loads(said)
        except (OSError, HTTPException, ValueError) as error:
            raise NoAnswerError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
