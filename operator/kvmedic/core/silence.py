"""Why a replica's own GPU driver told nothing, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Silence(StrEnum):
    """Why `nvidia-smi` in a replica's container did not make its health known."""

    FORBIDDEN = "Forbidden"
    """The API server does not let the operator run commands in pods."""
    NOT_STARTED = "NotStarted"
    """The container's runtime could not start it."""
    TIMED_OUT = "TimedOut"
    """It did not end in time; it may hang in the driver."""
    TOO_LONG = "TooLong"
    """It printed more than any number of devices needs."""
    UNREACHABLE = "Unreachable"
    """The connection to the container did not come about, or broke."""
    NO_TURN = "NoTurn"
    """Others were asked first, and the look was over."""
    UNKNOWN_FIELD = "UnknownField"
    """It does not know what it was asked for, by any name."""
    FAILED = "Failed"
    """It ended with an error that says nothing of a device."""
    NO_DEVICE = "NoDevice"
    """It listed no device."""
    INCOMPLETE = "Incomplete"
    """It answered, and a value of a device is not known, or a device is not listed."""


SILENCES: Mapping[Silence, str] = MappingProxyType(
    {
        Silence.FORBIDDEN: (
            "the operator may not run it: grant get and create on pods/exec (the chart does so with "
            "nodeHealth.nvidiaSmi), and see that no admission policy refuses it"
        ),
        Silence.NOT_STARTED: (
            "it could not be started: the NVIDIA container runtime adds it to a container whose "
            "NVIDIA_DRIVER_CAPABILITIES has utility"
        ),
        Silence.TIMED_OUT: "it did not end in time: see whether the driver hangs, in the node's kernel log",
        Silence.TOO_LONG: "it printed far more than it should: see what that program is in the image",
        Silence.UNREACHABLE: "the container was not reached: see whether it runs, and its node's kubelet",
        Silence.NO_TURN: "its turn has not come yet: nothing is to be done",
        Silence.UNKNOWN_FIELD: "it does not know the fields that it was asked for: use a newer driver",
        Silence.FAILED: "it ended with an error: run it in the container and read what it says",
        Silence.NO_DEVICE: "it lists no GPU: see whether the container has one",
        Silence.INCOMPLETE: (
            "it does not tell all of every GPU: run it in the container, as GPUs without ECC count no memory "
            "errors, and one that is missing or shows ERR! is to be looked at"
        ),
    }
)
"""What each means for a person, and what to do."""
