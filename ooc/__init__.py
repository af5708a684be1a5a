"""ooc: out-of-core convolution. cuDNN-like operations on arrays larger than the device, under a hard memory budget."""

from __future__ import annotations

from ooc.api import Activation, Conv, Pool, activation, avg_pool, chain, conv, max_pool
from ooc.device import Device, current_device, device, set_device_budget
from ooc.engine import last_report
from ooc.errors import BackendError, BudgetError, DtypeError, OocError, ShapeError, StoreError, UnsupportedError
from ooc.plan import Place, Plan
from ooc.planning import plan
from ooc.trace import Report

__version__ = "0.1.0"

__all__ = [
    "Activation", "BackendError", "BudgetError", "Conv", "Device", "DtypeError", "OocError", "Place", "Plan", "Pool",
    "Report", "ShapeError", "StoreError", "UnsupportedError", "activation", "avg_pool", "chain", "conv", "current_device",
    "device", "last_report", "max_pool", "plan", "set_device_budget",
]  # fmt: skip
