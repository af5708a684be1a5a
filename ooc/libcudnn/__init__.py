"""The low-level face of cuDNN, as CuPy v13 had it in `cupy.cuda.cudnn`: constants, errors, the calls of a convolution program."""

from __future__ import annotations

from ooc.libcudnn.constants import *  # noqa: F403
from ooc.libcudnn.errors import CuDNNError as CuDNNError

available = True
