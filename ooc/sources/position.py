"""Where a new tensor lies among the positions of another, along each of its axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ooc.errors import ArgumentError, shown
from ooc.sources.protocol import Source
from ooc.sources.view import View

Position = Mapping[str, Sequence[float]]


def checked(path: str, like: Source | None, position: Position | None) -> tuple[Source | None, dict[str, tuple[float, float]]]:
    """The whole source that a file is like, and by letter of its axes where the file's position 0 lies in it, and how long a step
    is. Raises ArgumentError."""
    if position is not None and (like is None or not isinstance(position, Mapping)):
        raise ArgumentError(f"{path}: position: expected a dict, beside like=; got {shown(position)}")
    whole = like.source if isinstance(like, View) else like
    lies = dict.fromkeys(whole.axes, (0.0, 1.0)) if whole is not None else {}
    if isinstance(like, View):
        lies |= {letter: (float(span.lo), 1.0) for letter, span in zip(like.source.axes, like.picked, strict=False)}
    for letter, numbers in (position or {}).items():
        try:
            offset, step = map(float, numbers)
        except (TypeError, ValueError):
            offset = step = math.nan
        if letter not in lies or not (math.isfinite(offset) and 0 < step < math.inf):
            raise ArgumentError(
                f"{path}: position: expected by letter of {''.join(lies)!r} two numbers, the second above 0; "
                f"got {shown(letter)}: {shown(numbers)}"
            )
        lies[letter] = (lies[letter][0] + offset, step)
    return whole, lies
