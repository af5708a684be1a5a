"""ooc: out-of-core convolution. cuDNN-like operations on arrays larger than the device, under a hard memory budget.

Its names are listed in `__init__.pyi` and imported when somebody uses them: networks and ONNX take their time, and PyTorch,
Dask and those for whom there are hooks may be missing.
"""

from __future__ import annotations

import lazy_loader

from ooc.runtime.version import VERSION

__version__ = VERSION
__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = [name for name in _names if name not in ("bioimageio", "dask", "diffusers", "monai", "nnunet", "torch")]
