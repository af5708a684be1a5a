"""What `ooc` offers: each name is imported from where it stands here once somebody uses it."""

from . import bioimageio as bioimageio
from . import dask as dask
from . import diffusers as diffusers
from . import errors as errors
from . import monai as monai
from . import networks as networks
from . import nnunet as nnunet
from . import onnx as onnx
from . import torch as torch
from .api.backward import (
    Gradients,
    activation_backward,
    avg_pool_backward,
    bias_backward,
    chain_backward,
    conv_backward,
    max_pool_backward,
)  # fmt: skip
from .api.batch_norm import BatchNorm, BatchNormGradients, batch_norm, batch_norm_backward, fold_batch_norm
from .api.forward import activation, avg_pool, chain, conv, conv_transpose, global_avg_pool, max_pool
from .api.functions import (
    add,
    concat,
    dropout,
    lrn,
    lrn_backward,
    scale,
    upsample,
    upsample_backward,
)  # fmt: skip
from .api.layers import Activation, Conv, Pool
from .api.linear import linear, linear_backward
from .api.plan_query import plan
from .api.softmax import cross_entropy, cross_entropy_backward, softmax, softmax_backward
from .errors import (
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
from .networks import SGD, Adam, AdamW, Graph, NetworkPlan, RMSprop
from .runtime.context import current_device, device, set_device_budget
from .runtime.device import Device
from .runtime.engine import last_report
from .runtime.report import Report
from .schedule.place import Place
from .schedule.plan import Plan
from .sources import Source, create, open
from .sources.arrays import as_source
from .training import Trained, train
from .workers import Task, Training, run_tasks, tasks

__version__: str

__all__ = [
    "SGD", "Activation", "Adam", "AdamW", "ArgumentError", "BackendError", "BatchNorm", "BatchNormGradients", "BudgetError",
    "Conv", "Device", "DtypeError", "Gradients", "Graph", "NetworkPlan", "OocError", "OptionError", "Place", "Plan", "Pool",
    "RMSprop", "Report", "ShapeError", "Source", "StoreError", "Task", "Trained", "Training", "UnsupportedError",
    "activation", "activation_backward", "add", "as_source", "avg_pool", "avg_pool_backward", "batch_norm", "batch_norm_backward",
    "bias_backward", "chain", "chain_backward", "concat", "conv", "conv_backward", "conv_transpose", "create", "cross_entropy",
    "cross_entropy_backward", "current_device", "device", "dropout", "errors", "fold_batch_norm", "global_avg_pool",
    "last_report", "linear", "linear_backward", "lrn", "lrn_backward", "max_pool", "max_pool_backward", "networks", "onnx",
    "open", "plan", "run_tasks", "scale", "set_device_budget", "softmax", "softmax_backward", "tasks", "train", "upsample",
    "upsample_backward",
]  # fmt: skip
