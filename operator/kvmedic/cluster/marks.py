"""What kvmedic writes onto other people's objects: annotations, and nothing in a pod template.

They are a fence and notes for people, never an authority.
"""

from __future__ import annotations

PREFIX = "kvmedic.io/"

RUN = f"{PREFIX}run"
"""On the Deployment: `<resource uid>/<run>/<sequence>` of the last assignment that was committed."""

RECORDED = f"{PREFIX}recorded"
"""On the Deployment: the values from before the run, so that it can be undone by hand."""

CORDONED = f"{PREFIX}cordoned"
"""On a pod: the label and the deletion cost that it had before it was cordoned, and for which Deployment."""

CORDONED_FOR = f"{PREFIX}cordoned-for"
"""Label of such a pod: the uid of that Deployment. By it a pod is found that nothing else leads to."""

TARGET = f"{PREFIX}target"
"""Label of a ConfigMap that is a copy of ours: the uid of the Deployment that it was made for."""

COPY_OF = f"{PREFIX}copy-of"
"""On such a copy: the ConfigMap that it was copied from, and the hash of what was in that then."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""On a pod: of two Ready pods the one of lower cost is removed first (Kubernetes 1.22, KEP 2255)."""

CORDON_COST = "-2147483648"
"""The lowest deletion cost there is: costs are 32-bit integers."""
