"""Which cluster this machine gets: kind where a Docker engine answers, else the native one."""

import os

from lab.cluster.interface import Cluster
from lab.cluster.kind import KindCluster, docker_answers
from lab.cluster.native import NativeCluster

VARIABLE = "LAB_CLUSTER"


def choose() -> Cluster:
    """The cluster of this machine; the environment variable LAB_CLUSTER=native or =kind overrules."""
    wish = os.environ.get(VARIABLE, "")
    if wish not in ("", "native", "kind"):
        raise ValueError(f"{VARIABLE}={wish}: give native or kind, or leave it unset")
    if wish == "kind" or (not wish and docker_answers()):
        return KindCluster()
    return NativeCluster()
