"""Machine code of our own kernels, compiled when an element type is first used and kept on disk."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

from ooc.backends.cuda.source import device_source
from ooc.cache import cache_folder
from ooc.errors import BackendError
from ooc.files.whole import sweep, whole
from ooc.native import DTYPE_CODES


def machine_code(nvrtc: Any, part: str, dtype: str, index: int, arch: str) -> bytes:
    """The kernels of a part of kernels/device/ for an element type and coordinates of 32 or 64 bits, for GPUs of a compute
    capability such as "90". Multiplications and additions are not contracted: all kernels round alike, and as the host does.

    nvrtc: CuPy's binding of NVRTC (`cupy_backends.cuda.libs.nvrtc`, alike in CuPy 13 and 14), without CuPy's own options, which
    flush subnormal numbers to zero. What the same compiler made before comes from the folder of OOC_CACHE. Raises BackendError.
    """
    defined = f"-DOOC_TYPE={DTYPE_CODES[dtype]}", f"-DOOC_INDEX={index}"
    source, options = device_source(part), (*defined, f"-arch=sm_{arch}", "-std=c++17", "-fmad=false")
    what = repr((source, options, nvrtc.getVersion()))
    folder = cache_folder()
    if folder is None:
        return _compiled(nvrtc, source, f"{part}.cu", options)
    path = folder / f"{part}-{dtype}-{index}-{arch}-{hashlib.sha256(what.encode()).hexdigest()[:20]}"
    with suppress(OSError):
        return path.read_bytes()
    binary = _compiled(nvrtc, source, f"{part}.cu", options)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
        with whole(path, settled=False) as file:  # others may read at the same time
            file.write(binary)
    return binary


def _compiled(nvrtc: Any, source: str, name: str, options: tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(source, name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise BackendError(f"NVRTC: {error}: {nvrtc.getProgramLog(program)[:2000]}") from error
    finally:
        nvrtc.destroyProgram(program)
