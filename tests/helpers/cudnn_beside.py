"""Functions of the real cuDNN that ooc does not use, on CuPy arrays: what ours are compared with on a GPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc.backends.cuda.cudnn import cudnn_reason, open_cudnn

TYPES = {"float32": 0, "float64": 1, "float16": 2}
POOLING = {"max": 0, "average": 1, "average_valid": 2, "max_deterministic": 3}
ACTIVATION = {"sigmoid": 0, "relu": 1, "tanh": 2, "clipped_relu": 3, "elu": 4, "identity": 5}
SOFTMAX = {"accurate": 1, "log": 2}
BATCH_NORM = {"per_activation": 0, "spatial": 1}
PROPAGATE = 1  # NaN
BY_CHANNELS = 1  # softmax
ACROSS_CHANNELS = 0  # local response normalisation
CROSS_CORRELATION = 1

double, address = ctypes.c_double, ctypes.c_void_p


class RealCudnn:
    """The library and a handle on the default stream. Descriptors are few, and live as long as the process."""

    def __init__(self, path: str) -> None:
        self.library, self.handle = ctypes.CDLL(path), address()
        self._check("cudnnCreate", ctypes.byref(self.handle))

    def call(self, name: str, *args: Any) -> None:
        """A function that takes a handle, complete when it returns."""
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
        self._check(name, self.handle, *args)
        cupy.cuda.runtime.deviceSynchronize()

    def apply(self, name: str, *what: Any, inputs: Sequence[Any], out: Any, beta: float = 0.0) -> None:
        """out = f(inputs) + beta out. `what` are the arguments that say which f."""
        tensors = [part for array in inputs for part in self.tensor(array)]
        self.call(name, *what, scalar(out, 1.0), *tensors, scalar(out, beta), *self.tensor(out))

    def tensor(self, array: Any) -> tuple[Any, Any]:
        """The descriptor of an array, with four axes at least, and the address of its data."""
        shape, strides = list(array.shape), [s // array.itemsize for s in array.strides]
        if len(shape) == 1:  # a value per channel
            shape, strides = [1, shape[0], 1, 1], [shape[0], 1, 1, 1]
        described = self.descriptor("Tensor", TYPES[array.dtype.name], len(shape), ints(shape), ints(strides), suffix="Nd")
        return described, address(array.data.ptr)

    def descriptor(self, kind: str, *values: Any, suffix: str = "") -> Any:
        """A descriptor with its values; without any it is as made."""
        made = address()
        self._check(f"cudnnCreate{kind}Descriptor", ctypes.byref(made))
        if values:
            self._check(f"cudnnSet{kind}{suffix}Descriptor", made, *values)
        return made

    def pooling(self, mode: str, window: Sequence[int], pad: Sequence[int], stride: Sequence[int]) -> Any:
        sizes = map(ints, (window, pad, stride))
        return self.descriptor("Pooling", POOLING[mode], PROPAGATE, len(window), *sizes, suffix="Nd")

    def activation(self, act: str, coef: float = 0.0) -> Any:
        return self.descriptor("Activation", ACTIVATION[act], PROPAGATE, double(coef))

    def lrn(self, size: int, alpha: float, beta: float, k: float) -> Any:
        return self.descriptor("LRN", size, double(alpha), double(beta), double(k))

    def batch_norm(self, name: str, per: str, arrays: Sequence[Any], *values: Any, blends: int = 1) -> None:
        """A function of batch normalisation: arrays like x, the last of which is the result, then what it takes per channel.

        blends: pairs of alpha and beta.
        """
        tensors = [part for array in arrays for part in self.tensor(array)]
        parameters, pair = self.descriptor("Tensor"), (scalar(arrays[0], 1.0), scalar(arrays[0], 0.0))
        self._check("cudnnDeriveBNTensorDescriptor", parameters, tensors[0], BATCH_NORM[per])
        self.call(name, BATCH_NORM[per], *pair * blends, *tensors, parameters, *map(argument, values))

    def conv_bias_activation(self, algorithm: int, math: int, act: str, x: Any, w: Any, bias: Any, y: Any) -> None:
        """y = act(conv(x, w) + bias), padded by 1, in two dimensions."""
        import cupy

        filters = self.descriptor("Filter", TYPES[w.dtype.name], 0, w.ndim, ints(w.shape), suffix="Nd")
        ones, nbytes = ints([1, 1]), ctypes.c_size_t()
        conv = self.descriptor("Convolution", 2, ones, ones, ones, CROSS_CORRELATION, TYPES["float32"], suffix="Nd")
        self._check("cudnnSetConvolutionMathType", conv, math)
        source, result = self.tensor(x), self.tensor(y)
        sizes = (source[0], filters, conv, result[0], algorithm)
        self.call("cudnnGetConvolutionForwardWorkspaceSize", *sizes, ctypes.byref(nbytes))
        room = cupy.empty(max(1, nbytes.value), np.uint8)
        operands = (*source, filters, argument(w), conv, algorithm, argument(room), nbytes)
        added = (scalar(x, 0.0), *result, *self.tensor(bias), self.activation(act))
        self.call("cudnnConvolutionBiasActivationForward", scalar(x, 1.0), *operands, *added, *result)

    def _check(self, name: str, *args: Any) -> None:
        status = getattr(self.library, name)(*args)
        assert status == 0, f"{name}: status {status}"


@functools.cache
def real_cudnn() -> RealCudnn:
    library = open_cudnn()
    assert library is not None, cudnn_reason()
    return RealCudnn(library.path)


def scalar(array: Any, value: float) -> Any:
    """What alpha or beta points to, for tensors like an array."""
    return ctypes.byref(double(value) if array.dtype.name == "float64" else ctypes.c_float(value))


def ints(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def argument(value: Any) -> Any:
    """A float as a double, an array as the address of its data."""
    return double(value) if isinstance(value, float) else address(value.data.ptr)
