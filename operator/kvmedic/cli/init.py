"""`kvmedic init`: the KVRemediation that fits a Deployment, with a word on each choice. Nothing is written.

What has to be named for a fleet is found as the operator would find it; all else has its default.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kvmedic.cli.app import NOT_FOUND, REFUSED, USAGE, end_command
from kvmedic.cli.doctor import read_documents, target_name, targets_of
from kvmedic.cli.options import call_later
from kvmedic.doctor.documents import DocumentsError
from kvmedic.doctor.examine import Seen, namespace_in, see_documents
from kvmedic.doctor.first_resource import resource_text
from kvmedic.kube.objects import JsonObject
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Mode, typed_place


def command(
    target: str, namespace: str, files: list[Path] | None, context: str, kubeconfig: str, mode: str
) -> None:
    """Print the KVRemediation that fits."""
    name = target_name(target)
    if files:
        documents = read_documents(files)
        names = (name,) if name else targets_of(documents, files)
        seen, name = _of_documents(documents, names, namespace), names[0]
    elif name:
        cluster = (kubeconfig, context)
        seen = call_later("kvmedic.cli.live.cluster_doctor:see_workload", name, namespace, cluster)
    else:
        end_command("say for which workload: deploy/NAME, or -f FILE", USAGE)
    found = seen.view.workload(seen.policy.target)
    if isinstance(found, Blocked) and found.reason is Reason.ENGINE_NOT_SUPPORTED:
        end_command(f"{typed_place(name)}: {found.message}", REFUSED)
    sys.stdout.write(resource_text(seen.view, seen.policy, seen.neighbours, Mode(mode)))


def _of_documents(documents: list[JsonObject], names: tuple[str, ...], namespace: str) -> Seen:
    if len(names) != 1:
        end_command(f"say for which workload: {', '.join(map(typed_place, names))}", USAGE)
    place = namespace or namespace_in(documents, names[0])
    try:
        seen = see_documents(documents, names[0], place)
    except DocumentsError as error:
        end_command(error, USAGE)
    if seen is None:
        end_command(f"there is no {typed_place(names[0])} in namespace {place}", NOT_FOUND)
    return seen
