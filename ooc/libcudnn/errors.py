"""What went wrong, as cuDNN numbers it."""

from __future__ import annotations

from typing import Any

NAMES = {
    0: "SUCCESS", 1001: "NOT_INITIALIZED", 1002: "SUBLIBRARY_VERSION_MISMATCH", 1006: "RUNTIME_IN_PROGRESS",
    1007: "RUNTIME_FP_OVERFLOW", 2000: "BAD_PARAM", 2002: "BAD_PARAM_NULL_POINTER", 3000: "NOT_SUPPORTED",
    3007: "NOT_SUPPORTED_SHAPE", 4000: "INTERNAL_ERROR", 5000: "EXECUTION_FAILED",
}  # fmt: skip


class CuDNNError(RuntimeError):
    """A status of cuDNN, with lines that say more; `str` has the name of the status, and the lines behind. Pickles by its status.

    status: an int, cuDNN 9's number, such as 2000 for BAD_PARAM; any number makes an error.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        self._infos: list[str] = []
        super().__init__(f"cuDNN Error: CUDNN_STATUS_{NAMES.get(status, f'UNKNOWN ({status})')}")

    def add_info(self, info: str) -> None:
        """Add a line of text, `info`."""
        self._infos.append(str(info))

    def add_infos(self, infos: Any) -> None:
        """Add several lines of text, `infos`."""
        self._infos.extend(map(str, infos))

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *self._infos])

    def __reduce__(self) -> tuple[type[CuDNNError], tuple[int]]:
        return type(self), (self.status,)
