"""`kvmedic history`: the runs that ended: what each changed, how it was judged, when, and what it cost.

The status keeps the last ten runs of a resource, and figures and cost of the newest that changed the fleet.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kvmedic.cli.access import finish_look, load_resource, name_in, open_client
from kvmedic.cli.live.get import print_data, terminal_console
from kvmedic.cli.live.rows import short_time, whole_seconds
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.model.reasons import Trait
from kvmedic.model.redaction import without_controls
from kvmedic.model.run import Cost, Summary
from kvmedic.model.status import ClosedRun, Record, Resource
from kvmedic.record.store import RESOURCES, resource_of

if TYPE_CHECKING:
    from kvmedic.cli.options import TableForm

SCHEMA = "kvmedic.io/history/v1"
NOT_KEPT = "the status keeps figures and cost of the newest run that changed the fleet"


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that ended, and whose it was."""

    namespace: str
    name: str
    run: ClosedRun
    summary: Summary | None
    """Its figures and cost; None where they are not kept."""

    def describe_ended(self) -> dict[str, Any]:
        """Return it for a program; what is not known is null and has its reason in `unknown`."""
        run, summary = self.run, self.summary
        found: dict[str, Any] = {
            "namespace": self.namespace,
            "name": self.name,
            "id": run.id,
            "reason": str(run.reason),
            "changes": [without_controls(each) for each in run.steps],
            "outcome": str(run.outcome),
            "kept": Trait.KEPT in run.outcome.traits,
            "message": without_controls(run.message),
            "startedAt": f"{run.started_at:%Y-%m-%dT%H:%M:%SZ}",
            "endedAt": f"{run.ended_at:%Y-%m-%dT%H:%M:%SZ}",
            "seconds": whole_seconds(run.started_at, run.ended_at),
            "approval": run.approval.name if run.approval else None,
            "templateBefore": run.template or None,
            "templateAfter": run.template_after or None,
            "figures": [
                {"name": each.name, "before": each.before, "after": each.after} for each in summary.brought
            ]
            if summary and summary.brought
            else None,
            "cost": describe_cost(summary.cost) if summary else None,
        }
        why = {
            "approval": "the mode asked for no approval",
            "templateBefore": "an older version wrote it",
            "templateAfter": "it kept no change of the pod template",
            "figures": "it was not judged by figures" if summary else NOT_KEPT,
            "cost": NOT_KEPT,
        }
        return {**found, "unknown": {field: why[field] for field, value in found.items() if value is None}}


def describe_cost(cost: Cost) -> dict[str, Any]:
    """Return what a run cost for a program; GPU-seconds are null where the pod template asks for no GPU."""
    return {
        "replicasStarted": cost.replicas_started,
        "spareReplicaSeconds": cost.spare_replica_seconds,
        "spareGpuSeconds": cost.spare_gpu_seconds,
    }


def command(
    name: str, namespace: str, everywhere: bool, output: TableForm, context: str, kubeconfig: str
) -> None:
    """List the runs that ended, the newest first."""
    cluster = ClusterChoice(kubeconfig, context)
    which = name_in(cluster, namespace, name)

    async def look() -> list[Resource]:
        async with open_client(cluster) as client:
            if name:
                return [await load_resource(client, which)]
            bodies = await client.list(RESOURCES, "" if everywhere else which.namespace)
            return [resource_of(each) for each in bodies]

    resources = finish_look(look())
    for each in resources:
        if each.record is None:
            why = each.problem.message if each.problem else "its status cannot be read"
            print(f"left out: {each.namespace}/{each.name}: {why}", file=sys.stderr)
    runs = ended_runs(resources)
    if output in ("json", "yaml"):
        print_data({"schema": SCHEMA, "items": [each.describe_ended() for each in runs]}, output)
        return
    if not runs:
        print("no run has ended", file=sys.stderr)
        return
    terminal_console().print(_table(runs, wide=output == "wide", names=not name))


def ended_runs(resources: Sequence[Resource]) -> tuple[EndedRun, ...]:
    """Return the runs of resources, the newest first."""
    found = [
        EndedRun(each.namespace, each.name, run, summary_for(each.record or Record(), run))
        for each in resources
        for run in (each.record.history if each.record else ())
    ]
    return tuple(sorted(found, key=lambda each: each.run.ended_at, reverse=True))


def summary_for(record: Record, run: ClosedRun) -> Summary | None:
    """Return the figures and the cost of a run; None where they are not kept."""
    return record.summary if record.summary is not None and record.summary.run == run.id else None


def _table(runs: Sequence[EndedRun], *, wide: bool, names: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns = ["FLEET"] * names + ["RUN", "ENDED", "TOOK", "WHY", "CHANGED", "VERDICT"] + ["MESSAGE"] * wide
    for column in columns:
        # What was changed may take several lines on a narrow terminal: it is what this list is read for.
        table.add_column(column, no_wrap=column not in ("CHANGED", "MESSAGE"), overflow="fold")
    for each in runs:
        run = each.run
        changed = "; ".join(step.partition(": ")[2] or step for step in run.steps) or "nothing"
        cells = [f"{each.namespace}/{each.name}"] * names
        cells += [run.id, f"{run.ended_at:%Y-%m-%d %H:%M:%SZ}"]
        cells += [short_time(whole_seconds(run.started_at, run.ended_at)), str(run.reason)]
        cells += [without_controls(changed), str(run.outcome)]
        cells += [" ".join(without_controls(run.message).split())] * wide
        styles = {len(columns) - 1 - wide: _style_of(run)}
        table.add_row(*(Text(text, style=styles.get(at, "")) for at, text in enumerate(cells)))
    return table


def _style_of(run: ClosedRun) -> str:
    if Trait.HELPED in run.outcome.traits:
        return "green"
    return "red" if Trait.BAD_END in run.outcome.traits else ""
