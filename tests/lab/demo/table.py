"""The end of the play on one screen: before and after, and what must be true."""

import math

from lab.play.figures import Figures
from lab.play.result import Result

WIDTH = 78
Row = tuple[str, str, str, str]


def table(result: Result) -> str:
    lines = ["", _rule(), *_head(result), _rule()]
    if result.before is not None and result.after is not None:
        lines += [_row(row) for row in (("", "before", "after", ""), *_rows(result.before, result.after))]
        lines.append(_rule())
    lines += [*_facts(result), _rule(), *_end(result), ""]
    return "\n".join(lines)


def _rows(before: Figures, after: Figures) -> list[Row]:
    return [
        ("preemptions per request", *_pair(before, after, "preemptions_per_request", 2)),
        ("longest gap of a request, p95", *_pair(before, after, "longest_gap_p95", 2, " s")),
        ("inter-token time, p95", *_pair(before, after, "inter_token_p95", 3, " s")),
        ("time to first token, p95", *_pair(before, after, "ttft_p95", 1, " s")),
        ("tokens per second", *_pair(before, after, "tokens_per_second", 0)),
        ("goodput (no gap over 2 s), tokens/s", *_pair(before, after, "goodput_per_second", 0)),
        ("requests that hung over 2 s", *_share(before, after)),
        ("requests in the window", str(before.requests), str(after.requests), ""),
    ]


def _pair(before: Figures, after: Figures, name: str, digits: int, unit: str = "") -> tuple[str, str, str]:
    then, now = getattr(before, name), getattr(after, name)
    ratio = f"x{now / then:.2f}" if then and not math.isnan(then) and not math.isnan(now) else ""
    return f"{then:.{digits}f}{unit}", f"{now:.{digits}f}{unit}", ratio


def _share(before: Figures, after: Figures) -> tuple[str, str, str]:
    return f"{before.stalled_share:.0%}", f"{after.stalled_share:.0%}", ""


def _head(result: Result) -> list[str]:
    lines = [f"  {result.scenario.name}: {result.scenario.title}"]
    if result.plan:
        lines += _wrapped("plan", result.plan)
    return [*lines, *_wrapped("verdict", f"{result.verdict}: {result.message}".rstrip(": "))]


def _facts(result: Result) -> list[str]:
    rows: list[Row] = [
        ("requests over the whole run", str(result.requests), "", ""),
        ("failed or aborted requests", str(result.failed_requests), "", ""),
        (
            "fewest replicas in rotation",
            f"{result.min_in_rotation} of {result.scenario.fleet.replicas}",
            "",
            "",
        ),
        ("restarts per replica", f"{result.restarts_per_replica:g}", "", ""),
        ("objects of the fleet written to", str(len(result.rewritten)), "", ""),
        ("seconds, first request to last", f"{result.seconds:.0f}", "", ""),
    ]
    if result.operator:
        memory, cpu = result.operator["rss_mib"], result.operator["cpu_share"]
        rows.append(("operator: memory, CPU", f"{memory:.0f} MiB", f"{cpu:.1%}", ""))
    return [_row(row) for row in rows]


def _end(result: Result) -> list[str]:
    if not result.missed:
        return ["  as it should be"]
    return [line for miss in result.missed for line in _wrapped("MISSED", miss)]


def _row(row: Row) -> str:
    return f"  {row[0]:<38}{row[1]:>12}{row[2]:>12}{row[3]:>10}".rstrip()


def _rule() -> str:
    return "  " + "-" * (WIDTH - 2)


def _wrapped(label: str, text: str) -> list[str]:
    """Return a text under a label, broken at spaces."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH - 13:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    lines.append(line)
    return [f"  {label if not number else '':<9}{each}" for number, each in enumerate(lines)]
