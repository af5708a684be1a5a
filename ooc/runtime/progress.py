"""Telling the caller how far a call is: a bar, and the caller's own functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Callback = Callable[[int, int], None]


@contextmanager
def telling(total: int, show: bool, callbacks: Sequence[Callback]) -> Iterator[Callable[[int], None]]:
    """A function to call after every tile, driving a bar and the caller's callbacks."""
    bar = _bar(total) if show else None
    done = 0

    def on_tile(_: int) -> None:
        nonlocal done
        done += 1
        if bar is not None:
            bar(done)
        for callback in callbacks:
            callback(done, total)

    try:
        yield on_tile
    finally:
        if bar is not None:
            bar(-1)


def _bar(total: int) -> Callable[[int], None]:
    """A progress bar: tqdm when installed, a line of text otherwise. Call with the tiles done, -1 to finish."""
    try:
        from tqdm import tqdm
    except ImportError:
        return _plain_bar(total)
    bar = tqdm(total=total, unit="tile")

    def show(done: int) -> None:
        if done < 0:
            bar.close()
        else:
            bar.update(done - bar.n)

    return show


def _plain_bar(total: int) -> Callable[[int], None]:
    def show(done: int) -> None:
        if done < 0 or done * 20 // total != (done - 1) * 20 // total:
            end = "\n" if done < 0 else ""
            text = f"\r{max(done, 0) if done >= 0 else total}/{total} tiles"
            print(text, end=end, file=sys.stderr, flush=True)

    return show
