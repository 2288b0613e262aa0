"""A source of metrics that answers for N fleets: a process of its own, whose cost is not the operator's.

    python -m lab.bench.scale_source --fleets 1000 --replicas 2 --port 9090

Every replica has the series of a page that was recorded from vLLM 0.32.0: a calm one what the recorded load
would be at a tenth, without preemptions; a sick one that load, with the gauges' means at night. What it was
asked is kept until the number of sick fleets changes, so that asking again costs nothing but the transfer;
what was asked lately is evaluated anew before they are sick. `GET /spent` says what it was asked so far,
`POST /sick?count=50` makes the first fleets sick.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, urlsplit

from kvmedic.metrics.page import Page, parse_page
from kvmedic.metrics.series import Series
from lab.bench.scale_fleets import SPARSE, ScaleFleet, fleets
from lab.bench.scale_promql import NOW, Element, Index, evaluate
from worlds.nights import GAUGES

DATA = Path(__file__).parents[2] / "data" / "vllm"
RECORDED_SECONDS = 300.0
"""Over which the recorded load made the thrashing page of the idle one."""
CALM = 0.1
"""Share of the recorded load on a calm fleet."""
STILL = ("vllm:num_preemptions_total", "vllm:num_requests_waiting")
"""What stands at 0 on a calm fleet."""
STANDING = ("vllm:cache_config_info", "process_start_time_seconds")
"""What no load changes."""
AT_ONCE_SECONDS = 0.5
LATELY_SECONDS = 45.0
"""A round of 30 s and half of the next one."""
_TIME = b"@@"


def recorded(name: str) -> Page:
    return parse_page((DATA / f"metrics-{name}.txt").read_text(), datetime.now(UTC))


@dataclass
class Source:
    """What the series are, and what was asked."""

    all: list[ScaleFleet]
    sick: int = 0
    queries: int = 0
    sent_bytes: int = 0
    _known: dict[str, bytes] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)
    """When each query was asked last."""
    _index: dict[tuple[str, str], list[Element]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def make_sick(self, count: int) -> None:
        """Let that many fleets thrash, spread over the namespaces, and all others be calm."""
        since = time.monotonic() - LATELY_SECONDS
        index = self._indexed(count)
        lately = [key for key, at in tuple(self._asked.items()) if at > since]
        known = {key: _evaluate(key, index) for key in lately}
        with self._lock:
            self.sick, self._known, self._index = count, known, index

    def _indexed(self, count: int) -> dict[tuple[str, str], list[Element]]:
        index: dict[tuple[str, str], list[Element]] = {}
        idle, busy = recorded("idle"), recorded("thrash")
        calm, thrashing = rates(idle, busy, CALM), rates(idle, busy, 1.0)
        sick = {fleet.number for fleet in sorted(self.all, key=SPARSE)[:count]}
        for fleet in self.all:
            templates = thrashing if fleet.number in sick else calm
            for target in fleet.targets():
                for (name, labels), (level, rate) in templates.items():
                    element = Element({**dict(labels), **target, "__name__": name}, level, rate)
                    index.setdefault((name, ""), []).append(element)
                    index.setdefault((name, target["pod"]), []).append(element)
        return index

    def answer(self, text: str, moments: list[float]) -> bytes:
        """The body of an answer: a vector at one moment, or a matrix at several."""
        key = f"{len(moments)} {text}"
        with self._lock:
            self._asked[key] = time.monotonic()
            if key not in self._known:
                self._known[key] = _evaluate(key, self._index)
            content = self._known[key]
            for place, at in enumerate(moments):
                content = content.replace(_TIME + b"%d@" % place, b"%.3f" % at)
            self.queries, self.sent_bytes = self.queries + 1, self.sent_bytes + len(content)
        return content


def _evaluate(key: str, index: Index) -> bytes:
    """The answer to so many moments of a query, with places for its times."""
    moments, _, text = key.partition(" ")
    return body(text, index, int(moments))


Rates: TypeAlias = "dict[tuple[str, tuple[tuple[str, str], ...]], tuple[float, float]]"
"""Level and rate per second by a series' name and labels."""


def rates(idle: Page, busy: Page, share: float) -> Rates:
    """Each series of a replica under a share of the recorded load."""
    found: Rates = {}
    before = {(name, _key(one)): one.value for name, many in idle.series.items() for one in many}
    for name, many in busy.series.items():
        is_counter = name.endswith(("_total", "_bucket", "_sum", "_count"))
        every = max((one.value for one in many), default=0.0)
        for one in many:
            of_load = share
            if share < 1 and name in STILL:
                of_load = 0.0
            # Nobody waits for long on a calm fleet.
            is_late = share < 1 and (one.bound or 0.0) >= AT_ONCE_SECONDS and name.endswith("_seconds_bucket")
            risen = (every if is_late else one.value) - before.get((name, _key(one)), 0.0)
            if is_counter:
                found[name, _key(one)] = one.value, of_load * risen / RECORDED_SECONDS
            else:
                # A page has a moment; what is asked of gauges is their mean.
                level = GAUGES[name][1] if name in GAUGES else one.value
                found[name, _key(one)] = level * (1.0 if name in STANDING else of_load), 0.0
    return found


def _key(one: Series) -> tuple[tuple[str, str], ...]:
    bound = () if one.bound is None else (("le", "+Inf" if one.bound == math.inf else repr(one.bound)),)
    return (*sorted(one.labels.items()), *bound)


def body(text: str, index: Index, moments: int) -> bytes:
    """An answer with places for its times."""
    is_range, rows = moments > 1, []
    for one in evaluate(text, index):
        values = [f'[@@{place}@,"{_value(one.value, place)}"]' for place in range(moments)]
        samples = f'"values":[{",".join(values)}]' if is_range else f'"value":{values[0]}'
        rows.append(f'{{"metric":{json.dumps(dict(one.labels), separators=(",", ":"))},{samples}}}')
    kind = "matrix" if is_range else "vector"
    return f'{{"status":"success","data":{{"resultType":"{kind}","result":[{",".join(rows)}]}}}}'.encode()


def _value(value: float, place: int) -> str:
    if value == NOW:
        return f"@@{place}@"
    return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value) or (
        "NaN" if math.isnan(value) else f"{value:.15g}"
    )


def handler(source: Source) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            self._send(json.dumps({"queries": source.queries, "bytes": source.sent_bytes}).encode())

        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            form = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            asked = dict(parse_qsl(parts.query)) | dict(parse_qsl(form))
            if parts.path == "/sick":
                source.make_sick(int(asked["count"]))
                return self._send(b"{}")
            if parts.path.endswith("/query_range"):
                first, last, step = float(asked["start"]), float(asked["end"]), asked["step"]
                seconds = float(step[:-2]) / 1000 if step.endswith("ms") else float(step.removesuffix("s"))
                moments = [first + seconds * i for i in range(round((last - first) / seconds) + 1)]
            else:
                moments = [float(asked["time"])]
            try:
                return self._send(source.answer(asked["query"], moments))
            except (ValueError, LookupError, TypeError, AssertionError) as error:
                text = f"{error!r} in {asked['query']}"
                print(text, file=sys.stderr, flush=True)
                return self._send(json.dumps({"status": "error", "error": text}).encode(), 422)

        def _send(self, content: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


def serve(source: Source, port: int = 0) -> ThreadingHTTPServer:
    """A server that is to be started; port 0: any."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler(source))
    server.daemon_threads = True
    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("fleets", "replicas", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    chosen = parser.parse_args()
    source = Source(fleets(chosen.fleets, chosen.replicas))
    gc.disable()
    source.make_sick(0)
    gc.freeze()  # a million series, which each look for garbage would go through
    gc.enable()
    serve(source, chosen.port).serve_forever()


if __name__ == "__main__":
    main()
