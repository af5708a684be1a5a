"""CUDA devices: `backend.py` has memory, copies and streams, `conv.py` cuDNN, `kernels.py` our own kernels."""
