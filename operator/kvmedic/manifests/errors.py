"""Why a flag of a manifest is not read or edited."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LONGEST_MESSAGE = 2_000
"""Characters of a message, at most: it goes into conditions, which take 32,768 (KEP-1623)."""


class ErrorReason(StrEnum):
    """What stands in the way. One sentence each."""

    NOT_A_MANIFEST = "NotAManifest"
    """The text is not a Kubernetes manifest."""
    NO_ENGINE = "NoEngine"
    """No container is recognised as an inference server."""
    OTHER_ENGINE = "OtherEngine"
    """The container runs an inference server whose flags are not known."""
    SEVERAL_ENGINES = "SeveralEngines"
    """More than one container could be meant."""
    SHELL_SCRIPT = "ShellScript"
    """The flags are words of a shell script."""
    UNKNOWN_WRAPPER = "UnknownWrapper"
    """Another program starts the engine, and how it passes arguments on is not known."""
    UNKNOWN_ENTRYPOINT = "UnknownEntrypoint"
    """The image's own entry point or command decides, and it is not known."""
    NOT_TEXT = "NotText"
    """A token of command or args is not a string, which Kubernetes does not accept."""
    WOULD_NOT_START = "WouldNotStart"
    """The engine does not accept its command line as it is."""
    FROM_VARIABLE = "FromVariable"
    """The value comes from an environment variable."""
    IN_CONFIG_FILE = "InConfigFile"
    """The value may come from a configuration file."""
    UNKNOWN_FLAG = "UnknownFlag"
    """No such flag is known."""
    NOT_IN_VERSION = "NotInVersion"
    """The engine of this version does not have the flag."""
    VERSION_UNKNOWN = "VersionUnknown"
    """Whether the engine has the flag depends on its version, which is not known."""
    INVALID_VALUE = "InvalidValue"
    """The engine would not accept the value."""
    TOO_LARGE = "TooLarge"
    """Reading it would take too long: it is too long, too deep, or grows when variables are replaced."""
    SHARED_YAML = "SharedYaml"
    """The place in the text is shared by an anchor, an alias or a merge."""
    UNSAFE = "Unsafe"
    """The edit could not be shown to change this one value alone."""


@dataclass(frozen=True, slots=True)
class ManifestError:
    """A flag is not read or not edited, and why."""

    reason: ErrorReason
    message: str
    """What, where, and what to do instead. Holds no token but the one concerned."""

    def __post_init__(self) -> None:
        """Cut a message that quotes what is very long."""
        if len(self.message) > LONGEST_MESSAGE:
            object.__setattr__(self, "message", f"{self.message[:LONGEST_MESSAGE]}…")
