"""What the next step needs is read while this one runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Made = TypeVar("Made")


def ahead(make: Callable[[int], Made], steps: range) -> Generator[tuple[int, Made], None, None]:
    """What is made for each step; the next one is made by a thread while this one is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(make, step) for step in steps[:1]]
        for step in steps:
            ready = coming.pop().result()
            if step + 1 < steps.stop:
                coming.append(pool.submit(make, step + 1))
            yield step, ready
