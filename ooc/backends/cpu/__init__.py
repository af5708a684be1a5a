"""The CPU: `backend.py` has memory and copies, `families.py` the kernels in their order."""
