"""Measuring the library: `cpu.py` is the entry, `gpu/run.py` that of `make gpu`."""
