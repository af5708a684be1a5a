"""Machine instructions that our kernels take for each element: counted in what the compiler makes of them, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ooc.backends.cuda.code import machine_code
from ooc.backends.cuda.dense import UNROLL
from ooc.backends.cuda.source import part_of
from ooc.backends.gpu_workspace import GOOD
from ooc.errors import UnsupportedError
from ooc.ir.op import ITEM_BYTES
from perfmodel.bench.gpu.compiler import Nvrtc, disassembled, find_nvrtc

LABEL = re.compile(r"(\.[\w.]+):")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);")
JUMP = re.compile(r"BRA.*`\((\.\w+)\)")


class CountedKernel(NamedTuple):
    """What is counted: a kernel, which of its loops over elements (the shortest is 0), and what it does there, in words."""

    name: str
    loop: int
    what: str
    dense: bool = True


KERNELS = (
    CountedKernel("pointwise_dense_identity", 0, "a factor"),
    CountedKernel("pointwise_dense_relu", 0, "relu"),
    CountedKernel("pointwise_dense_relu", 1, "bias, relu"),
    CountedKernel("pointwise_dense_relu", 2, "addition, relu"),
    CountedKernel("pointwise_dense_relu", 3, "addition, bias, relu"),
    CountedKernel("activation_backward_dense_relu", 0, "relu, backward"),
    CountedKernel("multiply_dense_identity", 0, "product"),
    CountedKernel("bn_apply_dense_identity", 0, "batch norm"),
    CountedKernel("bn_apply_dense_relu", 0, "batch norm, relu"),
    CountedKernel("bn_pull_dense", 0, "batch norm, backward"),
    CountedKernel("convert_in_dense", 0, "from integers of 8 bits"),
    CountedKernel("convert_out_dense", 0, "to integers of 8 bits"),
    CountedKernel("reduce_dense_parts", -1, "sums"),
    CountedKernel("bn_moments_dense_parts", -1, "moments"),
    CountedKernel("bn_sums_dense_parts", -1, "sums of batch norm's gradient"),
    CountedKernel("softmax_sum_parts", 0, "sums of softmax", False),
    CountedKernel("softmax_dot_parts", 0, "sums of softmax, backward", False),
    CountedKernel("pointwise", -1, "relu, by coordinates", False),
    CountedKernel("bn_apply", -1, "batch norm, by coordinates", False),
    CountedKernel("place", -1, "padding", False),
    CountedKernel("copy_block", 0, "layout", False),
    CountedKernel("widen_block", -1, "to f32", False),
)


def loops(text: str) -> dict[str, list[int]]:
    """Of each kernel the lengths of its loops, in instructions, both sides of its branches counted, shortest first. Subroutines
    for rare numbers, which lie behind the end, are not. text: disassembled machine code."""
    kernels: dict[str, list[int]] = {}
    at: dict[str, int] = {}
    count = 0
    for line in text.splitlines():
        if label := LABEL.match(line):
            if label[1].startswith(".text."):
                name, at, count = label[1].removeprefix(".text."), {}, 0
                kernels[name] = []
            at[label[1]] = count
        elif instruction := INSTRUCTION.match(line):
            jump = JUMP.search(instruction[1])
            if jump and count - at.get(jump[1], count) > 0:  # a jump to itself is the end of the code
                kernels[name].append(count - at[jump[1]] + 1)
            count += 1
    return {name: sorted(lengths) for name, lengths in kernels.items()}


def instructions(arch: str = "90", dtypes: tuple[str, ...] = ("f32", "f16")) -> Iterator[dict[str, Any]]:
    """Rows: instructions of a kernel for each element, for each type. Raises UnsupportedError where there is no compiler."""
    library = find_nvrtc()
    if library is None:
        raise UnsupportedError("NVRTC not found; the wheel nvidia-cuda-nvrtc has it")
    nvrtc, known = Nvrtc(library), dict[tuple[str, str], dict[str, list[int]]]()
    for kernel in KERNELS:
        row: dict[str, Any] = {"kernel": kernel.name, "what": kernel.what, "arch": arch}
        for dtype in dtypes:
            key = part_of()[kernel.name], dtype
            if key not in known:
                known[key] = loops(disassembled(machine_code(nvrtc, *key, 32, arch)))
            elements = UNROLL * GOOD // ITEM_BYTES[dtype] if kernel.dense else 1
            row[dtype] = known[key][kernel.name][kernel.loop] / elements
        yield row


def line(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    counts = "  ".join(f"{dtype} {row[dtype]:6.1f}" for dtype in ITEM_BYTES if dtype in row)
    return f"{row['what']:32} {row['kernel']:32} {counts}"
