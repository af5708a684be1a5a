"""From ooc's errors to cuDNN's: what a call refuses, as a status with a line that says why."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ooc.errors import BackendError, DtypeError, ShapeError, UnsupportedError
from ooc.libcudnn.errors import CuDNNError

BAD_PARAM, NOT_SUPPORTED, EXECUTION_FAILED = 2000, 3000, 5000
LOWEST_ADDRESS = 4096  # what lies below is no memory on any system

P = ParamSpec("P")
R = TypeVar("R")


def refusal(info: str, status: int = BAD_PARAM) -> CuDNNError:
    """An error to raise, with a line that says why."""
    error = CuDNNError(status)
    error.add_info(info)
    return error


def guarded(call: Callable[P, R]) -> Callable[P, R]:
    """Decorator: what ooc refuses is refused with cuDNN's numbers. An exceeded budget and a failing file stay ooc's errors."""

    @functools.wraps(call)
    def checked(*args: P.args, **named: P.kwargs) -> R:
        try:
            return call(*args, **named)
        except (ShapeError, DtypeError) as error:
            raise refusal(f"{call.__name__}: {error}") from error
        except UnsupportedError as error:
            raise refusal(f"{call.__name__}: {error}", NOT_SUPPORTED) from error
        except BackendError as error:
            raise refusal(f"{call.__name__}: {error}", EXECUTION_FAILED) from error

    return checked
