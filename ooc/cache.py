"""What is remembered: a bounded table with one rule of forgetting, and the folder of what is kept on disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:
        """As of functools, without its lock (until Python 3.12 one for all instances): a forked child might find it held."""

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self.func, self.__doc__ = make, make.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            attribute = instance.__dict__[self.name] = self.func(instance)
            return attribute


Value = TypeVar("Value")


def lock_across_forks() -> threading.RLock:
    """A lock for a whole module, which a forked child finds free: a fork waits until nobody holds it. A thread may take it again,
    as the handler of a signal does that calls ooc while its own thread holds it."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


_writing = lock_across_forks()  # of all tables: adding is short and rare, reading needs no lock


class Cache(dict[Any, Value]):
    """Values by key, at most so many: the oldest is forgotten. Threads may share it; `get` and `in` are a dict's own."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: Any, value: Value) -> Value:
        """Remember a value, unless a thread was faster with one for the same key; returns what is remembered."""
        with _writing:
            if key not in self:
                while len(self) >= self.most:
                    self.pop(next(iter(self)))
            return self.setdefault(key, value)

    def made(self, key: Any, make: Callable[[], Value]) -> Value:
        """What is remembered for a key, or is made for it now; where that raises, nothing is remembered."""
        entry = self.get(key)  # asked once: another thread may be forgetting it
        return entry if entry is not None else self.keep(key, make())


def cache_folder() -> Path | None:
    """Where measurements are kept on disk: OOC_CACHE, else ooc in the user's cache folder; None: the user has no home."""
    if folder := os.environ.get("OOC_CACHE"):
        return Path(folder)
    if os.path.isabs(named := os.environ.get("XDG_CACHE_HOME", "")):
        return Path(named) / "ooc"
    try:
        return Path.home() / ".cache" / "ooc"
    except RuntimeError:
        return None
