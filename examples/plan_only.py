"""Plans without arrays and without a device: how would these operations be cut under a budget?

python examples/plan_only.py [BUDGET]     (default "64 MiB")
"""

from __future__ import annotations

import sys

import ooc

DESCRIPTORS = (
    "conv.fprop n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1 dtype=f32",
    "conv.fprop n=32 c=512 h=28 w=28 k=512 r=3 s=3 pad=1 bias=1 act=relu dtype=f16",
    "conv.fprop n=1 c=16 d=256 h=256 w=256 k=16 t=3 r=3 s=3 pad=1 dtype=f32",
    # A chain: the tile of one operation feeds the next while it is on the device.
    "conv.fprop n=8 c=3 h=4096 w=4096 k=64 r=3 s=3 pad=1 act=relu dtype=f32 | pool.max n=8 k=64 h=4096 w=4096 window=2 dtype=f32",
)


def main(budget: str = "64 MiB") -> None:
    """Print a plan for each descriptor on the null device, which knows sizes only."""
    for descriptor in DESCRIPTORS:
        plan = ooc.plan(descriptor, budget, device="null", places={"x": "disk", "y": "disk"})
        text = plan.to_json()
        print(plan)
        print(f"          as JSON: {len(text)} characters, read back equal: {ooc.Plan.from_json(text) == plan}\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
