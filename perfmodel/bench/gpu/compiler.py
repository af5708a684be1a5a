"""NVIDIA's run-time compiler and disassembler, for which no GPU is needed: of the system, or in NVIDIA's wheels."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ooc.errors import UnsupportedError


def _of_wheels(pattern: str) -> list[str]:
    return [str(p) for folder in sys.path for p in sorted(Path(folder).glob(f"nvidia/*/{pattern}"))]


def find_nvrtc() -> ctypes.CDLL | None:
    """The run-time compiler, by the loader or in NVIDIA's wheels."""
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", *_of_wheels("lib/libnvrtc.so.1[23]")):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


class Nvrtc:
    """CuPy's binding of the run-time compiler, as far as `machine_code` uses it, where CuPy is not.

    options: all that compilations were given.
    """

    class NVRTCError(RuntimeError):
        """A call that failed."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.options = library, list[str]()

    def getVersion(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._checked(self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    def createProgram(self, source: str, name: str, headers: Any, names: Any) -> ctypes.c_void_p:
        program = ctypes.c_void_p()
        self._checked(self.library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
        return program

    def compileProgram(self, program: Any, options: Any) -> None:
        self.options += options
        c_options = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        self._checked(self.library.nvrtcCompileProgram(program, len(options), c_options))

    def _checked(self, code: int) -> None:
        if code:
            raise self.NVRTCError("NVRTC_ERROR_COMPILATION" if code == 6 else f"NVRTC error {code}")

    def _text(self, program: Any, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._checked(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._checked(getattr(self.library, f"nvrtcGet{what}")(program, text))
        return text.raw

    def getProgramLog(self, program: Any) -> str:
        return self._text(program, "ProgramLog").decode()

    def getCUBIN(self, program: Any) -> bytes:
        return self._text(program, "CUBIN")

    def destroyProgram(self, program: Any) -> None:
        self.library.nvrtcDestroyProgram(ctypes.byref(program))


def find_nvdisasm() -> str | None:
    """The disassembler, on the path or in NVIDIA's wheels."""
    return shutil.which("nvdisasm") or next(iter(_of_wheels("bin/nvdisasm")), None)


def disassembled(cubin: bytes) -> str:
    """Machine code as text. Raises UnsupportedError where there is no nvdisasm."""
    tool = find_nvdisasm()
    if tool is None:
        raise UnsupportedError("nvdisasm not found; the wheel nvidia-cuda-nvdisasm has it")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(cubin)
        return subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=True).stdout
