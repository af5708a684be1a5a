"""The kernel families of the CPU backend, best first; the last always answers.

`fft`       convolution of many taps at stride 1 by Fourier transforms of blocks, half types through f32; rounds exact numbers
`winograd`  f32 convolution of 3 x 3 taps at stride 1, all passes, with fewer multiplications, half types through f32
`native_bf16` bf16 convolution by dot products of pairs, where the processor has them: fprop, and dgrad at stride 1
`onednn`    f32 convolution through oneDNN (opened at run time), half types through f32
`native_lean` our own kernels; threads pack those of the filters that their tile needs, again for each tile: filters that
            do not fit the budget
`native`    our own kernels, blocked, filters packed once
`plain`     our own kernels as simple loops that need no workspace: depthwise convolutions, budgets of a few KiB; sums in an
            order that does not depend on the tiling
`reference` NumPy, when no compiler was found
"""

from __future__ import annotations

from ooc import native
from ooc.backends.base import Kernel
from ooc.backends.cpu.conv import LEAN, NATIVE, ONEDNN, PLAIN, WINOGRAD
from ooc.backends.cpu.fft import FFT
from ooc.backends.cpu.loops import SIMPLE
from ooc.backends.cpu.pairs import PAIRS
from ooc.backends.families import Family, ever, no_workspace
from ooc.backends.pieces import in_pieces
from ooc.ir.op import Op
from ooc.ir.region import Sizes
from ooc.ops import Convolution


def _why_not_reference(op: Op) -> str | None:
    return "reference: the compiled kernels serve this; NumPy's temporaries are outside any budget" if native.kernels else None


def _reference(op: Op, sizes: Sizes, workspace: object, threads: int) -> Kernel:
    native.told_slow()
    return in_pieces(op)


def _by_kind(conv: Family) -> Family:
    """Convolutions by a family, other operations by our own loops."""

    def pick(op: Op) -> Family:
        return conv if isinstance(op, Convolution) else SIMPLE

    return Family(
        lambda op: pick(op).why_not(op),
        lambda op, sizes, threads: pick(op).workspace(op, sizes, threads),
        lambda op, sizes, workspace, threads: pick(op).prepare(op, sizes, workspace, threads),
    )


FAMILIES: dict[str, Family] = {
    "fft": FFT,
    "winograd": WINOGRAD,
    "native_bf16": PAIRS,
    "onednn": ONEDNN,
    "native_lean": LEAN,
    "native": _by_kind(NATIVE),
    "plain": _by_kind(PLAIN)._replace(ordered=ever),
    "reference": Family(_why_not_reference, no_workspace, _reference, ordered=ever),
}
