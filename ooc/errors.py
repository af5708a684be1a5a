"""The errors of ooc: one hierarchy, each also an instance of the built-in error a caller would expect.

Every error caused by the arguments is raised before a single output byte is written. A message says what was
expected and what was given, with units, and the next move.
"""

from __future__ import annotations

MOST = 299  # characters of a message: arguments are quoted in it, and they may be arrays


def brief(text: str, most: int) -> str:
    """A text, its middle left out where it has more characters than `most`.

    >>> brief("abcdefghijklmnop", 12)
    'abcd ... nop'
    """
    room = most - 5
    return text if len(text) <= most else f"{text[: room - room // 2]} ... {text[len(text) - room // 2 :]}"


def shown(value: object) -> str:
    """An argument as an error quotes it; Python refuses to write very long integers."""
    return f"an integer of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 200 else repr(value)


class OocError(Exception):
    """Base of every error that ooc raises on purpose. Its message is one line of less than 300 characters."""

    def __init__(self, *given: object) -> None:
        super().__init__(*[brief(" ".join(part.split()), MOST) if isinstance(part, str) else part for part in given])


class ShapeError(OocError, ValueError):
    """Shapes, axes, strides, padding or groups do not fit together."""


class ArgumentError(ShapeError):
    """An argument is none of what is expected, arguments do not go together, or a file is not what a call needs. A
    ShapeError too, as which it was raised before."""


class PositionError(ArgumentError, IndexError):
    """An index that a tensor in a file has not, or that it does not take."""


class DtypeError(OocError, TypeError):
    """A dtype that ooc does not compute with, or operands whose dtypes differ."""


class OptionError(OocError, TypeError):
    """A keyword that no function takes so, or an option of another type than it must have."""


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


class OutOfMemoryError(BackendError, MemoryError):
    """The device, or pinned memory, has less left than a plan that keeps within its budget takes, as somebody else has it; or no
    memory has room for a result that was not given as `out=`."""


class StoreError(OocError, OSError):
    """Reading or writing a whole tensor failed: a full disk, a file that shrank, a file that went away."""
