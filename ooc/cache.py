"""What is remembered: a bounded table with one lock and one rule of forgetting, and the folder of what is kept on disk."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

_ABSENT: Any = object()


class Cache(Generic[Value]):
    """Values by key, at most so many: what was not asked for longest is forgotten. Threads may share it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[Any, Value] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Any) -> bool:
        return key in self._kept

    def get(self, key: Any) -> Value | None:
        """What is known for a key, or None. Raises TypeError for a key that cannot be one."""
        with self._lock:
            found = self._kept.get(key, _ABSENT)
            if found is _ABSENT:
                return None
            self._kept.move_to_end(key)
            return found  # type: ignore[no-any-return]

    def keep(self, key: Any, value: Value) -> Value:
        """Remember a value, unless a thread was faster with one for the same key; returns what is kept."""
        with self._lock:
            found = self._kept.setdefault(key, value)
            self._kept.move_to_end(key)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
            return found

    def made(self, key: Any, make: Callable[[], Value]) -> Value:
        """What is known for a key, or is made for it now; what cannot be made raises and is not remembered."""
        with self._lock:
            found = self._kept.get(key, _ABSENT)
            if found is not _ABSENT:
                self._kept.move_to_end(key)
                return found  # type: ignore[no-any-return]
        return self.keep(key, make())

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()


def cache_folder() -> Path:
    """Where measurements are kept on disk: OOC_CACHE, else ooc in the user's cache folder."""
    own = os.environ.get("OOC_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ooc"
