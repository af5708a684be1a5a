"""Measuring a machine: `cpu.py` and `cuda.py` are the entries."""
