"""Problems that once went wrong, from regressions.txt: a descriptor, and after `;` the tile and the outermost dim that did it."""

from __future__ import annotations

from pathlib import Path

LINES = [line for line in Path(__file__).with_suffix(".txt").read_text().splitlines() if line and not line.startswith("#")]
