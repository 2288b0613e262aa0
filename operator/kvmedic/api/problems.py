"""What can be wrong with a resource that was read, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError


class SpecInvalid(Exception):  # noqa: N818 -- named like the reason that it leads to
    """The spec cannot be followed as it is written.

    Attributes:
        problems: one sentence per field, beginning with the field's path.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RunUnreadable(Exception):  # noqa: N818 -- named like the reason that it leads to
    """A record in the status cannot be read. Nothing is done until a person looks.

    Attributes:
        problems: one sentence per field, beginning with the field's path.
        is_damaged: parts of the open run are gone or no values at all, as after an edit by hand, and nothing
            else is wrong; another version would have written values that are not known here.
    """

    def __init__(self, problems: tuple[str, ...], *, is_damaged: bool = False) -> None:
        super().__init__("; ".join(problems))
        self.problems, self.is_damaged = problems, is_damaged


def problems_of(error: ValidationError, root: str) -> tuple[str, ...]:
    """Return what is wrong with an object that was validated under a path, one sentence per field.

    Values are left out: a message that everyone may read must not repeat what may be a secret.
    """
    details = error.errors(include_input=False, include_url=False)
    return tuple(f"{root}{_path(d['loc'], d.get('ctx', {}))}: {_said(d['type'], d['msg'])}" for d in details)


def _path(location: tuple[int | str, ...], context: Mapping[str, object]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return f"{path}{context.get('path', '')}"


def _said(kind: str, message: str) -> str:
    match kind:
        case "missing":
            return "required, add it"
        case "extra_forbidden":
            return "unknown field, remove it"
        case "enum":
            return f"unknown value: {message[:200]}"
        case _:
            return message
