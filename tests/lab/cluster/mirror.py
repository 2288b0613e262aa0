"""The objects of one collection as a watch told of them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Object = dict[str, Any]
Told: TypeAlias = Callable[[dict[str, Object]], None]
"""Called with all objects by uid after each change; must be quick."""


@dataclass(slots=True)
class Mirror:
    """Keeps what it is told; readable from every thread."""

    told: Told | None = None
    _objects: dict[str, Object] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, event: str, body: Object) -> None:
        """Take one event of a watch."""
        with self._lock:
            if event == "DELETED":
                self._objects.pop(body["metadata"]["uid"], None)
            else:
                self._objects[body["metadata"]["uid"]] = body
            held = dict(self._objects) if self.told is not None else {}
        if self.told is not None:
            self.told(held)

    def objects(self) -> list[Object]:
        """Return the objects as last told, in the order in which they were first seen."""
        with self._lock:
            return list(self._objects.values())
