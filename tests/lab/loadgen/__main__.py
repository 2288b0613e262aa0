"""`python -m lab.loadgen`: send a load, write what became of each request, print a summary."""

import argparse
import asyncio
import signal
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import TextIO

from lab.loadgen import lengths
from lab.loadgen.client import base_url
from lab.loadgen.load import ClosedLoop, Keys, Load, OpenLoop, Plan
from lab.loadgen.record import ConnectionMode, Record, Summary, summarise


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.loadgen", description=__doc__)
    parser.add_argument(
        "--url", action="append", required=True, help="base URL; of several one is drawn each time"
    )
    parser.add_argument("--first-url", help="base URL for the first request of each client of a closed loop")
    parser.add_argument("--targets", type=Path, help="file of base URLs; requests go there by their keys")
    parser.add_argument("--keys", type=int, default=60, help="how many keys there are; 0: any target")
    parser.add_argument("--model", required=True, help="served model name")
    parser.add_argument(
        "--lengths", default="64+512", help=f"PROMPT+OUTPUT tokens, or one of: {', '.join(lengths.names())}"
    )
    parser.add_argument(
        "--shared", type=int, default=0, help="tokens with which prompts begin alike, before --lengths"
    )
    parser.add_argument("--groups", type=int, default=1, help="ways in which --shared tokens begin prompts")
    parser.add_argument("--clients", type=int, default=0, help="closed loop: how many clients")
    parser.add_argument("--kept", type=int, default=0, help="closed loop: how many keep their connection")
    parser.add_argument("--rate", type=float, default=0.0, help="open loop: requests per second")
    parser.add_argument(
        "--keep-alive", action="store_true", help="open loop: requests share kept connections"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="send for at most this long")
    parser.add_argument("--requests", type=int, default=100_000, help="send at most this many")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same requests")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one request")
    parser.add_argument("--patience", type=float, help="seconds without a token after which a client leaves")
    parser.add_argument("--grace", type=float, default=0.0, help="seconds for what is under way at the end")
    parser.add_argument("--out", type=Path, help="write one JSON line per ended request")
    return parser


def plan_from(parsed: argparse.Namespace) -> Plan:
    if (parsed.clients > 0) == (parsed.rate > 0):
        raise ValueError("give --clients for a closed loop or --rate for an open one")
    mode = ConnectionMode.KEEP_ALIVE if parsed.keep_alive else ConnectionMode.FRESH
    open_loop = OpenLoop(parsed.rate, mode=mode)
    arrivals = ClosedLoop(parsed.clients, parsed.kept) if parsed.clients else open_loop
    return Plan(
        targets=tuple(map(base_url, parsed.url)),
        model=parsed.model,
        lengths=lengths.parse(parsed.lengths),
        arrivals=arrivals,
        seconds=parsed.seconds,
        requests=parsed.requests,
        seed=parsed.seed,
        timeout_seconds=parsed.timeout,
        grace_seconds=parsed.grace,
        first=base_url(parsed.first_url) if parsed.first_url else None,
        shared=parsed.shared,
        groups=parsed.groups,
        keys=Keys(parsed.targets, parsed.keys) if parsed.targets else None,
        patience_seconds=parsed.patience,
    )


async def send(plan: Plan, out: TextIO | None) -> list[Record]:
    """Run the plan until its end or SIGTERM; return the records, written to `out` as they come."""
    records: list[Record] = []

    def take(record: Record) -> None:
        records.append(record)
        if out is not None:
            out.write(record.line() + "\n")
            out.flush()

    load = Load(plan, take)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, load.stop)
    await load.run()
    return records


def printed(summary: Summary) -> str:
    return "\n".join(f"{field.name:20} {getattr(summary, field.name):12.3f}" for field in fields(summary))


def main() -> int:
    """Run the command; return its exit code: 0 if no request was lost, 1 if any was, 2 for a bad argument."""
    parser = arguments()
    parsed = parser.parse_args()
    try:
        plan = plan_from(parsed)
    except ValueError as error:
        parser.error(str(error))
    started = time.time()
    if parsed.out is None:
        records = asyncio.run(send(plan, None))
    else:
        with parsed.out.open("w", encoding="utf-8") as out:
            records = asyncio.run(send(plan, out))
    summary = summarise(records, started, time.time() + 1e-3)
    print(printed(summary))
    return 1 if summary.lost else 0


if __name__ == "__main__":
    sys.exit(main())
