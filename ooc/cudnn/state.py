"""What `ooc.cudnn` keeps between calls: the workspace limit, handles, descriptors."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from operator import index
from typing import Any

import numpy as np

import ooc.libcudnn as libcudnn
from ooc.cudnn.checks import array, channels_last, first, get_data_type, steps_of, windows_of
from ooc.errors import BudgetError, UnsupportedError
from ooc.ir.op import Op
from ooc.libcudnn import CUDNN_CROSS_CORRELATION, CUDNN_PROPAGATE_NAN, CUDNN_TENSOR_NCHW
from ooc.runtime.device import Device, current_device
from ooc.schedule.plan import Budget, Plan

DEFAULT_WORKSPACE = 8 * 2**20
LEAST_WORKSPACE, MOST_WORKSPACE = 256, 1 << 40  # bytes, tried where a limit leaves no plan
KEPT = 8  # devices with a workspace limit that are remembered

_set: list[int] = []  # the explicit limit, if any
_limited: list[tuple[Device, Device]] = []
_handles: dict[str, int] = {}
_lock = threading.Lock()


def get_max_workspace_size() -> int:
    """The workspace limit of a call in bytes; 8 MiB until it is set, which stands for "the planner chooses"."""
    return _set[0] if _set else DEFAULT_WORKSPACE


def set_max_workspace_size(size: int | None) -> None:
    """Limit the workspace of every later call to a number of bytes, 0 included; None (beyond v13): the planner chooses.

    Raises TypeError for what is no integer, OverflowError for what no size_t holds.
    """
    value = None if size is None else index(size)
    if value is not None and not 0 <= value < 1 << 64:
        raise OverflowError(f"can't convert {value} to size_t")
    with _lock:
        _set[:] = [] if value is None else [value]
        _limited.clear()


def limited() -> AbstractContextManager[Any]:
    """The current device under the explicit workspace limit, to be entered; nothing to enter while none was set."""
    return _under(current_device(), _set[0]) if _set else nullcontext()


class Limited(Device):
    """A device under a workspace limit. Every operation has a plan, as every one of v13's did under a limit of 0.

    Where none keeps within it (half types are widened in the workspace, fused stages hand tiles on in it), the limit is
    doubled until one does.
    """

    def _search(self, op: Op, budget: Budget) -> Plan:
        limit = budget.workspace_bytes or 0
        while True:
            try:
                return super()._search(op, Budget(**{**vars(budget), "workspace_bytes": limit}))
            except BudgetError as error:
                too_small = self.device_bytes is not None and error.smallest_bytes is not None
                if too_small or limit >= MOST_WORKSPACE:
                    raise
                limit = max(LEAST_WORKSPACE, 2 * limit)


def _under(device: Device, limit: int) -> Device:
    """A device like another, under a workspace limit; remembered, for its plans."""
    with _lock:
        for known, made in _limited:
            if known is device and made.device_bytes == device.device_bytes and made.pinned_bytes == device.pinned_bytes:
                return made
        own = device.workspace_bytes
        made = Limited(
            device.backend, device.model, device.device_bytes, device.pinned_bytes,
            limit if own is None else min(limit, own), device.deterministic,
        )  # fmt: skip
        _limited.insert(0, (device, made))
        del _limited[KEPT:]
        return made


# ---- handles


def get_handle() -> int:
    """The cuDNN handle of the current device: a number for the low-level calls; the calls here need none."""
    driver = getattr(current_device().backend, "driver", None)
    where = f"{current_device().backend.name}:{getattr(driver, 'index', 0)}"
    with _lock:
        if where not in _handles:
            _handles[where] = int(low("create")()) if hasattr(libcudnn, "create") else len(_handles) + 1
        return _handles[where]


@atexit.register
def reset_handles() -> None:
    """Destroy the handles; the next `get_handle` makes new ones."""
    with _lock:
        handles = list(_handles.values())
        _handles.clear()
    if hasattr(libcudnn, "destroy"):
        for handle in handles:
            libcudnn.destroy(handle)


def low(name: str) -> Callable[..., Any]:
    """A low-level call of `ooc.libcudnn`. Raises UnsupportedError where there is none of that name."""
    found: Callable[..., Any] | None = getattr(libcudnn, name, None)
    if found is None:
        raise UnsupportedError(f"ooc.libcudnn provides no {name}; the calls of ooc.cudnn on arrays need no descriptors")
    return found


def is_tensor_core_available(dtype: Any) -> bool:
    """As v13 answered: whether dtype is float16 and the device of compute capability 7.0. Nothing here asks it."""
    driver: Any = getattr(current_device().backend, "driver", None)
    return np.dtype(dtype) == np.float16 and driver is not None and driver.identity()["capability"] == "7.0"


# ---- descriptors, for the low-level calls


class Descriptor:
    """A descriptor of cuDNN: `value` is its number, destroyed with this object."""

    def __init__(self, descriptor: int, destroyer: Callable[[int], Any] | None) -> None:
        self.value = descriptor
        if descriptor and destroyer is not None:
            weakref.finalize(self, destroyer, descriptor)


def made(kind: str) -> Descriptor:
    """A new descriptor of a kind, such as Tensor, not yet set."""
    return Descriptor(low(f"create{kind}Descriptor")(), low(f"destroy{kind}Descriptor"))


def contiguous(given: Any) -> Any:
    """An array for a descriptor. Raises ValueError unless it is C-contiguous."""
    seen = array("arr", given)
    if not seen.flags.c_contiguous:
        raise ValueError("cupyx.cudnn supports c-contiguous arrays only")
    return seen


def pointer(values: Any) -> tuple[np.ndarray[Any, Any], int]:
    """Integers as C sees them, and their address."""
    held = np.ascontiguousarray(values, np.int32)
    return held, held.ctypes.data


def create_tensor_descriptor(arr: Any, format: int = CUDNN_TENSOR_NCHW) -> Descriptor:
    """The descriptor of an array; format: how one of four axes is stored."""
    seen = contiguous(arr)
    if seen.ndim != 4:
        return _nd(made("Tensor"), seen)
    sizes = first(seen.shape, channels_last(format, 4))
    found = made("Tensor")
    low("setTensor4dDescriptor")(found.value, format, get_data_type(seen.dtype), *sizes)
    return found


def create_uninitialized_tensor_descriptor() -> Descriptor:
    """A tensor descriptor that is not set yet."""
    return made("Tensor")


def create_tensor_nd_descriptor(arr: Any) -> Descriptor:
    """The descriptor of an array with any number of axes; of an empty one, the number 0."""
    return Descriptor(0, None) if array("arr", arr).size == 0 else _nd(made("Tensor"), contiguous(arr))


def _nd(found: Descriptor, seen: Any) -> Descriptor:
    """Set a descriptor to a contiguous array; NumPy's strides of axes of extent 1 mean nothing."""
    dense = [prod(seen.shape[axis + 1 :]) for axis in range(seen.ndim)]
    (shape, at), (strides, steps) = pointer(seen.shape), pointer(dense)
    low("setTensorNdDescriptor")(found.value, get_data_type(seen.dtype), len(shape), at, steps)
    del strides
    return found


def create_filter_descriptor(arr: Any, format: int = CUDNN_TENSOR_NCHW) -> Descriptor:
    """The descriptor of filters."""
    seen = array("arr", arr)
    found, kind = made("Filter"), get_data_type(seen.dtype)
    if seen.ndim == 4:
        low("setFilter4dDescriptor_v4")(found.value, kind, format, *first(seen.shape, channels_last(format, 4)))
        return found
    shape, at = pointer(seen.shape)
    low("setFilterNdDescriptor_v4")(found.value, kind, format, len(shape), at)
    return found


def create_convolution_descriptor(
    pad: tuple[int, ...], stride: tuple[int, ...], dtype: Any, mode: int = CUDNN_CROSS_CORRELATION,
    dilation: tuple[int, ...] | None = None, use_tensor_core: bool = False, groups: int = 1,
) -> Descriptor:  # fmt: skip
    """The descriptor of a convolution, computed in f32 where its arrays are f16."""
    pads, strides, dilations = steps_of(pad, stride, dilation)
    stored = get_data_type(dtype)
    kind = stored if stored == libcudnn.CUDNN_DATA_DOUBLE else libcudnn.CUDNN_DATA_FLOAT
    found = made("Convolution")
    if len(pads) == 2:
        low("setConvolution2dDescriptor_v5")(found.value, *pads, *strides, *dilations, mode, kind)
    else:
        held = [pointer(v) for v in (pads, strides, dilations)]
        low("setConvolutionNdDescriptor_v3")(found.value, len(pads), *(at for _, at in held), mode, kind)
    if use_tensor_core:
        low("setConvolutionMathType")(found.value, libcudnn.CUDNN_TENSOR_OP_MATH)
    if groups > 1:
        low("setConvolutionGroupCount")(found.value, groups)
    return found


def create_pooling_descriptor(ksize: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], mode: int) -> Descriptor:
    """The descriptor of a pooling."""
    windows, strides, pads = windows_of(ksize, stride, pad)
    found, nan = made("Pooling"), libcudnn.CUDNN_NOT_PROPAGATE_NAN
    if len(windows) == 2:
        low("setPooling2dDescriptor_v4")(found.value, mode, nan, *windows, *pads, *strides)
    else:
        held = [pointer(v) for v in (windows, pads, strides)]
        low("setPoolingNdDescriptor_v4")(found.value, mode, nan, len(windows), *(at for _, at in held))
    return found


def create_activation_descriptor(mode: int, relu_nan_opt: int = CUDNN_PROPAGATE_NAN, coef: float = 0.0) -> Descriptor:
    """The descriptor of an activation."""
    found = made("Activation")
    low("setActivationDescriptor")(found.value, mode, relu_nan_opt, coef)
    return found


def create_dropout_descriptor(handle: int, dropout: float, states: int, state_size_in_bytes: int, seed: int) -> Descriptor:
    """The descriptor of a dropout."""
    found = made("Dropout")
    low("setDropoutDescriptor")(found.value, handle, dropout, states, state_size_in_bytes, seed)
    return found


def set_dropout_descriptor(desc: Descriptor, handle: int, dropout: float) -> None:
    """Change a dropout descriptor's rate."""
    low("setDropoutDescriptor")(desc.value, handle, dropout, 0, 0, 0)


def add_tensor(handle: int, alpha: int, biasDesc: int, biasData: int, beta: int, srcDestDesc: int, srcDestData: int) -> None:
    """alpha * bias + beta * data into data, all by number and address."""
    low("addTensor_v3")(handle, alpha, biasDesc, biasData, beta, srcDestDesc, srcDestData)
