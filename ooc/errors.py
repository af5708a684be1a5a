"""The errors of ooc: one hierarchy, each also an instance of the built-in error a caller would expect.

Every error caused by the arguments is raised before a single output byte is written. A message says what was
expected and what was given, with units, and the next move.
"""

from __future__ import annotations


class OocError(Exception):
    """Base of every error that ooc raises on purpose."""


class ShapeError(OocError, ValueError):
    """Shapes, strides, padding, groups or other arguments do not fit together."""


class DtypeError(OocError, TypeError):
    """A dtype that ooc does not compute with, or operands whose dtypes differ."""


class BudgetError(OocError, MemoryError):
    """No tiling of the operation fits the budget, or a budget is less than one byte.

    smallest_bytes: the least device budget that would do, in bytes, which the message names too; None where the limit of pinned
    memory or of workspace is too small, or a budget makes no sense.
    """

    smallest_bytes: int | None = None


class UnsupportedError(OocError, NotImplementedError):
    """A valid request that this backend or build cannot serve; the message says what would."""


class BackendError(OocError, RuntimeError):
    """The backend (a library, a driver, a kernel) failed while computing."""


class StoreError(OocError, OSError):
    """Reading or writing a whole tensor failed: a full disk, a file that shrank, a file that went away."""
