"""`python -m lab.evaluation`: ask every sample once, print how it goes, leave the score."""

import json
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from lab.evaluation.api import Api, NoAnswerError
from lab.evaluation.samples import Sample, samples_of

TERMINATION_LOG = "/dev/termination-log"
"""Where Kubernetes looks for a container's last words (`terminationMessagePath`'s default)."""
STEPS = 10
"""Lines of progress."""
SAMPLES, PROMPT_TOKENS, CONCURRENCY = 200, 400, 16
"""Half a minute on a lab engine of 2 ms a step and 0.2 ms a token."""
OUTPUT_TOKENS = 200
"""More than the 128 tokens between two passes of a method that evicts, which a shorter answer never meets."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says.

    `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `KVMEDIC_MODEL` (empty: the first that is served), `SAMPLES`,
    `PROMPT_TOKENS`, `OUTPUT_TOKENS`, `CONCURRENCY`, `TERMINATION_LOG`.
    """

    api: Api
    model: str = ""
    samples: int = SAMPLES
    prompt_tokens: int = PROMPT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    concurrency: int = CONCURRENCY
    termination_log: Path = Path(TERMINATION_LOG)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        url = environ.get("OPENAI_BASE_URL", "")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"OPENAI_BASE_URL={url!r} is no URL")
        return cls(
            Api(url, environ.get("OPENAI_API_KEY", "")),
            environ.get("KVMEDIC_MODEL", ""),
            _count(environ, "SAMPLES", SAMPLES),
            _count(environ, "PROMPT_TOKENS", PROMPT_TOKENS),
            _count(environ, "OUTPUT_TOKENS", OUTPUT_TOKENS),
            _count(environ, "CONCURRENCY", CONCURRENCY),
            Path(environ.get("TERMINATION_LOG") or TERMINATION_LOG),
        )


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}={text!r} is no number of at least 1")
    return int(text)


def evaluate(settings: Settings) -> float:
    """Return the share of samples that are answered right, 0 to 1; each is asked once."""
    samples = list(samples_of(settings.samples, settings.prompt_tokens))
    model = settings.model or settings.api.first_model()
    print(f"{settings.samples} samples of {settings.prompt_tokens} tokens for {model}", flush=True)
    asked = done = right = 0
    with ThreadPoolExecutor(settings.concurrency) as pool:
        answers = [pool.submit(_is_right, settings, model, sample) for sample in samples]
        try:
            for answer in as_completed(answers):
                right += answer.result()
                done += 1
                if done * STEPS // settings.samples > asked:
                    asked = done * STEPS // settings.samples
                    print(f"{done} answered, {right} right", flush=True)
        except NoAnswerError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return right / settings.samples


def _is_right(settings: Settings, model: str, sample: Sample) -> bool:
    text = settings.api.complete(model, sample.prompt, settings.output_tokens)
    return text.split()[-1:] == [sample.answer]


def main(environ: Mapping[str, str]) -> int:
    """Run the evaluation; return the exit code: 0 with a score, 1 without."""
    try:
        settings = Settings.from_environ(environ)
        score = evaluate(settings)
    except (ValueError, NoAnswerError) as error:
        print(f"no score: {error}", file=sys.stderr, flush=True)
        return 1
    result = json.dumps({"score": round(score, 4), "samples": settings.samples})
    settings.termination_log.write_text(result, encoding="utf-8")
    print(result, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
