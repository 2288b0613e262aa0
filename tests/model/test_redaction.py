"""Texts without secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.kube.errors import TEXT_LIMIT, Call, error_for
from kvmedic.model.redaction import names_secret, redact, without_controls

SECRET = "s3cr3tvalue"


@pytest.mark.parametrize(
    "text",
    [
        f"--api-key={SECRET}",
        f"--api-key {SECRET} --max-num-seqs 12",
        f"['--hf-token', '{SECRET}']",
        f'"--hf_token","{SECRET}"',
        f"VLLM_API_KEY={SECRET}",
        f"HF_TOKEN: {SECRET}",
        f"DB_PASSWORD='{SECRET}'",
        f'{{"clientSecret": "{SECRET}"}}',
        f"hf_{SECRET}",
        f"sk-{SECRET}{SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"http://user:{SECRET}@proxy:8080/",
    ],
)
def test_a_secret_is_hidden(text: str) -> None:
    assert SECRET not in redact(f"denied: {text}, see the policy")


@pytest.mark.parametrize(
    "text",
    [
        "--max-num-batched-tokens 8192",
        "one request of 16384 tokens on a trial pod",
        "TRIATTN_RUNTIME_KV_BUDGET=512, ENABLE_TRIATTENTION=1",
        "--tokenizer=mistral",
        "spec.compression.settings[0].env: VLLM_API_KEY is no setting of a known method",
        "the token is gone",
        "http://prometheus:9090/api",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_what_is_cut_to_length_is_redacted_before() -> None:
    said = "x" * (TEXT_LIMIT - 30) + f" --api-key={SECRET * 10}"

    found = error_for(Call("patch", "/d"), 403, {"reason": "Forbidden", "message": said})

    assert SECRET[:4] not in str(found)


@pytest.mark.parametrize(
    ("name", "expected"), [("VLLM_API_KEY", True), ("--hf-token", True), ("KV_TOKENS", False)]
)
def test_names_say_what_is_a_secret(name: str, *, expected: bool) -> None:
    assert names_secret(name) is expected


@pytest.mark.parametrize(
    "text", ["\x1b[2Jall is well", "a\r\u202eb", "\x9b31m", "a\u200bb\u2028c", "\x00\x07\x7f", "half \ud800"]
)
def test_what_would_change_a_terminal_is_stripped(text: str) -> None:
    found = redact(text)

    assert found.isprintable()
    assert without_controls(found) == found
    assert [each for each in found if each not in text] == []


def test_tabs_and_lines_stay_and_controls_hide_no_secret() -> None:
    assert without_controls("a\tb\nc é 漢") == "a\tb\nc é 漢"
    assert SECRET not in redact(f"--api\x1b-key={SECRET} hf\u200b_{SECRET}")


@given(st.text(st.sampled_from("-a.=: '\",\x1b\ntoken~_0/@"), max_size=60))
def test_any_text_is_redacted_once_and_for_all(text: str) -> None:
    assert redact(redact(text)) == redact(text)
