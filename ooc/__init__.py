"""ooc: out-of-core convolution. cuDNN-like operations on arrays larger than the device, under a hard memory budget."""

from __future__ import annotations

import importlib
from typing import Any

from ooc import onnx as onnx
from ooc.api.backward import (
    Gradients,
    activation_backward,
    avg_pool_backward,
    bias_backward,
    chain_backward,
    conv_backward,
    max_pool_backward,
)  # fmt: skip
from ooc.api.batch_norm import BatchNorm, BatchNormGradients, batch_norm, batch_norm_backward, fold_batch_norm
from ooc.api.forward import activation, avg_pool, chain, conv, conv_transpose, global_avg_pool, max_pool
from ooc.api.functions import (
    add,
    concat,
    dropout,
    lrn,
    lrn_backward,
    scale,
    upsample,
    upsample_backward,
)  # fmt: skip
from ooc.api.layers import Activation, Conv, Pool
from ooc.api.linear import linear, linear_backward
from ooc.api.plan_query import plan
from ooc.api.softmax import cross_entropy, cross_entropy_backward, softmax, softmax_backward
from ooc.errors import (
    ArgumentError,
    BackendError,
    BudgetError,
    DtypeError,
    OocError,
    OptionError,
    ShapeError,
    StoreError,
    UnsupportedError,
)
from ooc.networks import SGD, Adam, AdamW, Graph, NetworkPlan, RMSprop
from ooc.runtime.context import current_device, device, set_device_budget
from ooc.runtime.device import Device
from ooc.runtime.engine import last_report
from ooc.runtime.report import Report
from ooc.runtime.version import VERSION
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from ooc.sources import Source, create, open
from ooc.sources.arrays import as_source
from ooc.training import Trained, train
from ooc.workers import Task, Training, run_tasks, tasks

__version__ = VERSION


def __getattr__(name: str) -> Any:
    """`ooc.torch` and `ooc.dask` are imported when they are asked for, as their packages take their time."""
    if name not in ("torch", "dask"):
        raise AttributeError(f"module 'ooc' has no attribute {name!r}")
    return importlib.import_module(f"ooc.{name}")


__all__ = [
    "SGD", "Activation", "Adam", "AdamW", "ArgumentError", "BackendError", "BatchNorm", "BatchNormGradients", "BudgetError",
    "Conv", "Device", "DtypeError", "Gradients", "Graph", "NetworkPlan", "OocError", "OptionError", "Place", "Plan", "Pool",
    "RMSprop", "Report", "ShapeError", "Source", "StoreError", "Task", "Trained", "Training", "UnsupportedError",
    "activation", "activation_backward", "add", "as_source", "avg_pool", "avg_pool_backward", "batch_norm", "batch_norm_backward",
    "bias_backward", "chain", "chain_backward", "concat", "conv", "conv_backward", "conv_transpose", "create", "cross_entropy",
    "cross_entropy_backward", "current_device", "device", "dropout", "fold_batch_norm", "global_avg_pool", "last_report",
    "linear", "linear_backward", "lrn", "lrn_backward", "max_pool", "max_pool_backward", "onnx", "open", "plan", "run_tasks",
    "scale", "set_device_budget", "softmax", "softmax_backward", "tasks", "train", "upsample", "upsample_backward",
]  # fmt: skip
