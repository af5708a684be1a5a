"""Division by a number that is known beforehand, as kernels do it: by a multiplication and a shift."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(1 << 12)
def divisor(of: int) -> tuple[int, int]:
    """`by` and `shift`, of 32 bits, with n // of == n * by >> shift for all n below 2^31. All numbers from 2^31 on are as that.

    Source: Granlund and Montgomery, Division by invariant integers using multiplication, PLDI 1994.
    """
    of = min(max(of, 1), 1 << 31)
    shift = 31 + (of - 1).bit_length()
    return -(-(1 << shift) // of), shift
