"""The low-level face of cuDNN, as CuPy v13 had it in `cupy.cuda.cudnn`: constants, errors, the calls of a convolution program.

`import ooc.libcudnn as cudnn` in place of `from cupy.cuda import cudnn`: descriptors and handles are integers, data are
pointers or arrays (`ooc.libcudnn.memory`), scaling factors floats or addresses of floats, errors CuDNNError with cuDNN 9's
numbers, raised before anything is written. Every call is tiled to fit the budget of the current device.
"""

from __future__ import annotations

from inspect import isfunction as _isfunction
from typing import Any

from ooc.libcudnn import batch_norm, constants, convolution, descriptors, dropout, elementwise, library, pooling, queries
from ooc.libcudnn.arguments import tell as _tell
from ooc.libcudnn.batch_norm import *  # noqa: F403
from ooc.libcudnn.constants import *  # noqa: F403
from ooc.libcudnn.convolution import *  # noqa: F403
from ooc.libcudnn.descriptors import *  # noqa: F403
from ooc.libcudnn.dropout import *  # noqa: F403
from ooc.libcudnn.elementwise import *  # noqa: F403
from ooc.libcudnn.errors import CuDNNError as CuDNNError
from ooc.libcudnn.library import *  # noqa: F403
from ooc.libcudnn.pooling import *  # noqa: F403
from ooc.libcudnn.queries import *  # noqa: F403

available = True

_PARTS = (batch_norm, convolution, descriptors, dropout, elementwise, library, pooling, queries)
__all__ = ["CuDNNError", "available"]
__all__ += sorted(name for part in _PARTS for name in part.__all__)
__all__ += [name for name in dir(constants) if name.startswith("CUDNN_")]
for _call in filter(_isfunction, (vars(part)[name] for part in _PARTS for name in part.__all__)):
    _tell(_call)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise AttributeError(
        f"ooc.libcudnn does not provide {name}: only the calls of a convolution program (convolution, pooling, activation, "
        "softmax, batch normalisation, dropout, tensor addition and scaling)"
    )
