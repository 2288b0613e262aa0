"""What reading a pod template may cost, in counted steps, never seconds; more is refused as too large.

Anybody who may write a Deployment writes text that the operator reads. One budget goes through all that reads
a pod template, so that no fleet waits for another's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kvmedic.manifests.errors import ErrorReason, ManifestError

STEPS = 20_000
"""Steps for one pod template, at most. They take 0.1 s of CPU at most (measured), for which everything else
waits. A script of 100 lines takes 3,900 to 12,400, and the dearest of the 132 templates in tests/data/fleets
850."""
MOST_TOKENS = 400
"""Words that an engine is given, at most. They are kept with the view of its fleet, which each look unpacks:
390 take 3 ms of that (measured)."""
LONGEST_WORD = 64 * 1024
"""Characters of one word of a command line, at most. Linux takes no more than 131,071 bytes for one
(MAX_ARG_STRLEN, include/uapi/linux/binfmts.h)."""
DEEPEST = 100
"""Statements within statements, and variables within variables, at most. Python's stack has 1,000 frames,
and three are taken for a statement."""
CHARACTERS = 4
"""Characters for one step, each time that a text is gone through; a script is twice, so one of 40,000 is
refused before it is read. One of 36,000 takes 2 ms where it is a single word (measured), and the longest item
of a command line in tests/data/fleets has 272."""
WORD_STEPS = 16
"""Steps that a word takes, for what reads it later: it is compared with each option."""
PARSER_STEPS = 25
"""Steps for each 100 operations of the shell's grammar, and for each KiB that it reads, once or again."""
MOST_BRACKETS = 500
"""Brackets of YAML or JSON within one another, at most; Kubernetes' objects have some twenty."""
_BRACKET = re.compile(r"[\[\]{}]")


class TooLargeError(Exception):
    """A command line is too large to be read: whatever spends of a budget raises it.

    It never leaves `invocation_of`, `environment_of` and `containers_of`.
    """

    def __init__(self, message: str, *, is_spent: bool = False) -> None:
        super().__init__(message)
        self.is_spent = is_spent
        """Whether all steps are spent, be it on other containers of the template."""

    def as_manifest_error(self) -> ManifestError:
        """Return the error that says so."""
        return ManifestError(ErrorReason.TOO_LARGE, str(self))


class Budget:
    """What is left for reading one pod template; each container has its own depth."""

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps
        """Steps that are left."""
        self._depth = 0
        self._container = ""
        self._where = "the command line"

    def enter_container(self, container: Mapping[str, object]) -> None:
        """Begin to read a container."""
        self._depth = 0
        self._container = f"container {container.get('name')}"[:100]
        self._where = "the command line"

    def enter_field(self, where: str) -> None:
        """Begin to read one field of the container, which messages name from now on."""
        self._where = where[:100]

    def spend(self, steps: int) -> None:
        """Take steps.

        Raises:
            TooLargeError: there are not so many left.
        """
        self.steps -= steps
        if self.steps < 0:
            self.steps = 0
            raise TooLargeError(
                f"{self._where} of {self._container} takes more than the {STEPS} steps that a pod template "
                "may: list the engine's flags one by one in args, and name its container in "
                "spec.targetRef.container",
                is_spent=True,
            )

    def spend_text(self, length: int) -> None:
        """Take the steps for a piece of traced text, of which a word may become.

        Raises:
            TooLargeError: it is too long for one word, or there are not so many steps left.
        """
        if length > LONGEST_WORD:
            raise TooLargeError(
                f"{self._where} of {self._container} comes to more than {LONGEST_WORD} characters with its "
                "variables written out: shorten it, or the variables that it refers to"
            )
        self.spend(1 + length // CHARACTERS)

    @contextmanager
    def one_deeper(self) -> Iterator[None]:
        """Hold one level of what is within something else.

        Raises:
            TooLargeError: that is too deep.
        """
        self.check_depth(self._depth)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def check_depth(self, depth: int) -> None:
        """Refuse what is within too many others.

        Raises:
            TooLargeError: it is.
        """
        if depth >= DEEPEST:
            raise TooLargeError(
                f"{self._where} of {self._container} has more than {DEEPEST} statements or variables within "
                "one another: write it flat"
            )


def has_too_many_brackets(text: str) -> bool:
    """Return whether brackets of YAML or JSON are within too many others for a reader.

    The reader of YAML looks at each open bracket again for each word. Brackets in quotes count as well.
    """
    depth = 0
    for match in _BRACKET.finditer(text):
        depth = depth + 1 if match[0] in "[{" else max(0, depth - 1)
        if depth > MOST_BRACKETS:
            return True
    return False
