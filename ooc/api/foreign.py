"""Arrays of other libraries, without importing any: CuPy, PyTorch, and whatever speaks the CUDA array interface or DLPack."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ooc.api.labelled import OfLabelled, is_labelled, seen
from ooc.backends.device_array import DeviceArray, Untouched, device_array, owner_of
from ooc.errors import DtypeError, OutOfMemoryError, UnsupportedError
from ooc.ir.op import numpy_dtype
from ooc.runtime.stored import StoredArray, array_of
from ooc.schedule.budget import show_bytes
from ooc.sources.arrays import ArraySource, kind_of, source_of
from ooc.sources.protocol import is_source

CUDA_KINDS = (2, 13)  # DLPack's device types kDLCUDA and kDLCUDAManaged
MEMORY = ("__array_interface__", "__array_struct__", "__dlpack__")  # what an object in memory has, one of them
LAZY = {"zarr", "h5py", "dask", "tensorstore", "netCDF4", "tables"}  # libraries whose arrays are read when they are asked


class _OfTensor(np.ndarray[Any, Any]):
    """The memory of a tensor of PyTorch, that was passed as such."""


def known(name: str, array: Any) -> Any:
    """An argument as a NumPy array: itself, a view of the memory it lies in, or of what is read by region. Raises DtypeError for
    what is none of these."""
    if isinstance(array, np.ndarray):
        return array
    if array is None:
        raise DtypeError(f"{name}: expected an array, got None")
    if is_source(array):
        return array_of(name, array)
    if _is_torch(array):
        array = _plain_tensor(name, array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _view(name, array, interface)
    if _on_cuda(array):
        import cupy

        return known(name, cupy.from_dlpack(array))
    if is_lazy(array):
        return array_of(name, source_of(name, array))
    try:
        return seen(array) if is_labelled(array) else _on_host(array)
    except Exception as error:  # of whatever library the object is
        raise DtypeError(f"{name}: cannot be seen as an array: {type(error).__name__}: {error}") from None


def written(name: str, array: Any) -> Any:
    """An output as `known` sees it. Raises DtypeError also where that is a copy: what is written to it would be lost."""
    view = known(name, array)
    if isinstance(view, StoredArray) and not view.flags.writeable and not is_source(array):
        raise DtypeError(
            f"{name}: a {kind_of(array)} is no memory, and takes nothing that is written to it; pass ooc.create(path, ...), "
            f"ooc.open(path, 'r+'), or an array of zarr or h5py that is open for writing"
        )
    if isinstance(array, np.ndarray) or is_source(array) or isinstance(view, Untouched) or _is_torch(array):
        return view
    if not np.may_share_memory(view, _on_host(array)):
        raise DtypeError(
            f"{name}: NumPy sees a {kind_of(array)} as a copy, and what is written to that is lost; pass an array, and copy it "
            "back"
        )
    return view


def is_lazy(array: Any) -> bool:
    """Whether an object makes its numbers anew each time that it is asked: two looks at its first number share no memory."""
    if not hasattr(array, "__array__") or isinstance(array, np.ndarray | np.generic) or is_source(array):
        return False
    if type(array).__module__.split(".")[0] in LAZY:
        return True
    if _is_torch(array) or any(hasattr(array, mark) for mark in MEMORY):
        return False
    try:
        first = array[tuple(slice(0, 1) for _ in array.shape)]
        one, two = np.asarray(first), np.asarray(first)
    except Exception:  # it has no shape, or is not indexed so: a table of columns, say
        return False
    return bool(one.size) and not np.may_share_memory(one, two)


def _plain_tensor(name: str, tensor: Any) -> Any:
    """A tensor of PyTorch whose numbers lie in memory as its strides say. Raises DtypeError, UnsupportedError."""
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise DtypeError(
            f"{name}: a tensor of layout {tensor.layout}, dtype {tensor.dtype}; pass {name}.to_dense() or .dequantize()"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"{name}: a tensor on device {str(tensor.device)!r}; expected one on cpu or cuda, with its data")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            f"{name}: requires a gradient, and ooc's calls are not recorded by autograd; pass {name}.detach(), or call under "
            "torch.no_grad() and take the gradients of ooc's ..._backward"
        )
    return tensor.detach().resolve_neg().resolve_conj()


def _view(name: str, array: Any, interface: dict[str, Any]) -> DeviceArray:
    if interface.get("mask") is not None:
        raise DtypeError(f"{name}: masked arrays are not supported; fill the array first")
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    half = "bfloat16" in str(getattr(array, "dtype", ""))  # NumPy has no code for it
    dtype = numpy_dtype("bf16") if half else np.dtype(interface["typestr"])
    view = device_array(int(interface["data"][0]), shape, dtype, None if strides is None else tuple(strides), array)
    view.flags.writeable = not interface["data"][1]
    return view


def _on_host(array: Any) -> Any:
    """Memory of the host: seen, not copied, where the library allows it."""
    if _is_torch(array):
        half = "bfloat16" in str(array.dtype)
        memory = array.view(sys.modules["torch"].uint16).numpy().view(numpy_dtype("bf16")) if half else array.numpy()
        return memory.view(_OfTensor)
    return np.asarray(array)


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def lies_on_device(array: Any) -> bool:
    """Whether an object says that its numbers lie in the memory of a device."""
    return getattr(array, "__cuda_array_interface__", None) is not None or _on_cuda(array)


def _on_cuda(array: Any) -> bool:
    where = getattr(array, "__dlpack_device__", None)
    return where is not None and where()[0] in CUDA_KINDS


def empty_beside(array: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array where another one lives: on the host, or on its device by the library that made it (else by CuPy). A tensor of
    PyTorch has tensors beside it. Raises OutOfMemoryError where it has no room."""
    try:
        return _empty_beside(array, shape, dtype)
    except (MemoryError, ValueError) as error:  # NumPy's ValueError: more than addresses there are
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        raise OutOfMemoryError(f"no memory for a result of {shape}, {show_bytes(nbytes)}; give one on disk as out=") from error


def _empty_beside(array: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if not isinstance(array, DeviceArray):
        tensor = _tensor_behind(array)
        return np.empty(shape, dtype) if tensor is None else _torch_empty(tensor, shape, np.dtype(dtype))
    owner = owner_of(array)
    return MAKERS.get(type(owner).__module__.split(".")[0], _cupy_empty)(owner, shape, np.dtype(dtype))


def labels_of(array: Any) -> Any | None:
    """The array of xarray that an argument was, if it was one."""
    if isinstance(array, OfLabelled):
        return array.owner
    source = owner_of(array) if isinstance(array, StoredArray) else None
    return source.array if isinstance(source, ArraySource) and is_labelled(source.array) else None


def _tensor_behind(array: Any) -> Any | None:
    """The tensor of PyTorch whose memory an array of NumPy views, if any."""
    if not isinstance(array, _OfTensor):
        return None
    while isinstance(array, np.ndarray):
        array = array.base
    return array if _is_torch(array) else None


def _torch_empty(owner: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, dtype.name), device=owner.device)


def _cupy_empty(owner: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    import cupy

    with cupy.cuda.Device(getattr(getattr(owner, "device", None), "id", None)):
        return cupy.empty(shape, dtype)


MAKERS: dict[str, Callable[[Any, tuple[int, ...], np.dtype[Any]], Any]] = {"torch": _torch_empty, "cupy": _cupy_empty}
