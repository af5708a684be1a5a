"""The real networks as PyTorch modules, converted by ooc: outputs and all gradients are PyTorch's, or exit status 1.

python examples/real/as_torch.py [NAME ...] [--budget BYTES] [--json FILE]     (after fetch.py; needs PyTorch)
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from cases import CASES
from networks import DATA
from onnx import helper, numpy_helper
from running import commit, machine

import ooc

CLOSE = 1e-5  # of the largest value: outputs in float32
GRADIENT = 1e-9  # of the largest value of each gradient in float64
SIDES = {2: (61, 83), 3: (33, 35, 37)}  # of crops; odd, so that every rounding of sizes takes part
MULTIPLES = {"ppocr": (96, 160)}  # that network takes multiples of 32 alone

Attributes = dict[str, Any]
Operator = Callable[..., Any]


def padded(x: Any, given: Attributes, taps: Sequence[int], value: float = 0.0) -> Any:
    """With what a window needs around: as the file says, or so much that the result is as large, but for the stride."""
    rank = len(taps)
    found = given.get("pads", [0] * 2 * rank)
    sides = [(found[i], found[i + rank]) for i in range(rank)]
    if given.get("auto_pad") == b"SAME_UPPER":
        strides = given.get("strides", [1] * rank)
        total = [max(0, (-(-e // s) - 1) * s + t - e) for e, s, t in zip(x.shape[2:], strides, taps, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    return F.pad(x, [v for side in reversed(sides) for v in side], value=value)


def conv(x: Any, w: Any, b: Any = None, **given: Any) -> Any:
    rank = w.dim() - 2
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    stride, dilation = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    return function(padded(x, given, w.shape[2:]), w, b, stride, 0, dilation, given.get("group", 1))


def transposed(x: Any, w: Any, b: Any = None, **given: Any) -> Any:
    rank = w.dim() - 2
    return F.conv_transpose2d(x, w, b, given["strides"], given.get("pads", [0] * rank)[:rank], 0, given.get("group", 1))


def pooled(x: Any, **given: Any) -> Any:
    taps, rank = given["kernel_shape"], x.dim() - 2
    function: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    around = padded(x, given, taps, -math.inf)
    return function(around, taps, given["strides"], ceil_mode=bool(given.get("ceil_mode", 0)))


def resized(x: Any, *others: Any, **given: Any) -> Any:
    sizes = others[2] if len(others) > 2 else None
    if sizes is None:
        scales = [float(s) for s in others[1]][-(x.dim() - 2) :]
        sizes = [int(e * s) for e, s in zip(x.shape[2:], scales, strict=True)]
    linear = ("linear", "bilinear", "trilinear")[x.dim() - 3]
    mode = linear if given["mode"] in (b"linear", "linear") else "nearest"
    return F.interpolate(x, [int(s) for s in sizes][-(x.dim() - 2) :], mode=mode)


OPERATORS: dict[str, Operator] = {
    "Conv": conv, "ConvTranspose": transposed, "MaxPool": pooled, "Resize": resized,
    "Relu": F.relu, "Sigmoid": torch.sigmoid, "Erf": torch.erf, "Identity": lambda x: x,
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: torch.clamp(x * alpha + beta, 0, 1),
    "Add": torch.add, "Mul": torch.mul, "Div": torch.div,
    "Concat": lambda *xs, axis: torch.cat(xs, axis),
    "Shape": lambda x, start=0: list(x.shape)[start:],
    "ReduceMean": lambda x, axes, keepdims=1: x.mean(axes, keepdim=bool(keepdims)),
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True),
}  # fmt: skip


class OfFile(torch.nn.Module):
    """An ONNX file as a module, whose parameters are its floating tensors.

    Parameters:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        graph = onnx.load(path).graph
        self.nodes = [
            (n.op_type, list(n.input), list(n.output), {a.name: helper.get_attribute_value(a) for a in n.attribute})
            for n in graph.node
        ]
        sizes = {name for n in graph.node if n.op_type == "Resize" for name in n.input[1:]}
        self.sizes: dict[str, list[float]] = {}
        self.constants = torch.nn.Module()  # as buffers, which follow the module's type
        self.own = torch.nn.ParameterDict()
        for tensor in graph.initializer:
            value = numpy_helper.to_array(tensor).copy()
            key = tensor.name.replace(".", "/")
            if tensor.name in sizes:
                self.sizes[tensor.name] = value.tolist()
            elif value.dtype == np.float32 and value.ndim:
                self.own[key] = torch.nn.Parameter(torch.from_numpy(value))
            else:
                self.constants.register_buffer(key, torch.from_numpy(value))
        self.input, self.outputs = graph.input[0].name, [o.name for o in graph.output]

    def forward(self, x: torch.Tensor) -> Any:
        """Node by node."""
        values: dict[str, Any] = {"": None, self.input: x, **self.sizes}
        own = itertools.chain(self.own.items(), self.constants.named_buffers())
        values |= {name.replace("/", "."): tensor for name, tensor in own}
        for kind, reads, makes, given in self.nodes:
            arguments = [values[name] for name in reads]
            plain = {k: v for k, v in given.items() if k in ("alpha", "beta", "axis", "axes", "keepdims", "start")}
            wide = kind in ("Conv", "ConvTranspose", "MaxPool", "Resize")
            values[makes[0]] = OPERATORS[kind](*arguments, **(given if wide else plain))
        found = [values[name] for name in self.outputs]
        return found[0] if len(found) == 1 else found


def results(module: torch.nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs, and the gradients of the input and of all parameters, in the input's type."""
    given = x.clone().requires_grad_(True)
    module.zero_grad()
    made = module(given)
    outputs = list(made) if isinstance(made, (list, tuple)) else [made]
    numbers = torch.Generator().manual_seed(1)
    sum((y * torch.randn(y.shape, generator=numbers)).sum() for y in outputs).backward()  # type: ignore[union-attr]
    found = {f"output {i}": y.detach() for i, y in enumerate(outputs)} | {"dx": given.grad}
    return found | {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}  # type: ignore[dict-item]


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))


def checked(name: str, budget: str) -> dict[str, Any]:
    """One network, told."""
    crop = torch.from_numpy(CASES[name](DATA)[0].x)
    sides = MULTIPLES.get(name, SIDES[crop.dim() - 2])
    x = crop[(..., *(slice(s) for s in sides))].contiguous()
    module = OfFile(DATA / f"{name}.onnx").eval()
    wanted = results(module, x)
    begin = time.perf_counter()
    ooc.torch.convert_model(module, budget)
    found = results(module, x)
    seconds = time.perf_counter() - begin
    whole = hasattr(module.forward.segment((x,), {}), "plan")
    outputs = [n for n in wanted if n.startswith("output")]
    outputs_off = max(off(found[n], wanted[n]) for n in outputs)
    # Where a value is near the bend of an activation, or two share a maximum, rounding decides which way a gradient goes: in
    # float64 it does not.
    x = x.double()
    found = results(module.double(), x)
    wanted = results(ooc.torch.revert_model(module), x)
    assert wanted.keys() == found.keys()
    told = {
        "what": "convert_model",
        "network": name,
        "shape": list(x.shape),
        "budget": budget,
        "whole": whole,
        "outputs_off": outputs_off,
        "gradients": len(wanted) - len(outputs),
        "gradients_off": max(off(found[n], wanted[n]) for n in wanted if n not in outputs),
        "seconds": round(seconds, 2),
        "machine": machine(),
        "commit": commit(),
    }
    pieces = "one network" if whole else "in pieces"
    print(
        f"{name:8} {'x'.join(map(str, x.shape)):14} budget {budget}: {pieces}, outputs off {outputs_off:.1e}, "
        f"{told['gradients']} gradients off {told['gradients_off']:.1e} in float64; {seconds:.1f} s with planning",
        flush=True,
    )
    return told


def main(arguments: list[str]) -> int:
    """Check what was asked for; the exit status: 1 if a result is not PyTorch's."""
    parser = argparse.ArgumentParser(description="Real networks through ooc.torch.convert_model.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--budget", default="16 MiB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line of JSON per network")
    asked = parser.parse_args(arguments)
    rows = [checked(name, asked.budget) for name in asked.names or CASES]
    if asked.json:
        with asked.json.open("a") as file:
            file.writelines(json.dumps(told) + "\n" for told in rows)
    wrong = [r for r in rows if r["outputs_off"] > CLOSE or r["gradients_off"] > GRADIENT or not r["whole"]]
    print(f"{len(rows)} networks, {len(wrong)} of them not PyTorch's")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
