"""Whether two commits compute the same bits on this machine.

    python tests/golden/bits.py COMMIT [OTHER]

Each commit is laid out and, where its kernels are not those of this checkout, compiled. Both then run every public function in
memory and from files, under four budgets, and small networks by every policy, with `deterministic=True` and without; only public
names of ooc are called. The results with `deterministic=True` must be equal. The others need not be, as another plan may sum in
another order: how many are is told. OTHER: default: the files of this checkout as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUDGETS = (None, "64 KiB", "12 KiB", "4 KiB")
LEAST = (1 << 18, 1 << 15, 1 << 13)  # bytes under which networks are planned
POLICIES = (
    "auto", "keep", "stream", "vdnn_all", "vdnn_conv", "vdnn++", "smartpool", "autoswap", "layrub", "superneurons", "pooch",
    "modnn", "micro_cudnn",
)  # fmt: skip


# ---- what is computed, in the process of a commit


def functions(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Results of every public function."""
    import numpy as np
    from function_cases import CASES

    import ooc

    for number, (name, case) in enumerate(CASES.items()):
        rng = np.random.default_rng(number)
        given = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in case.shapes.items()}
        given |= {n: np.abs(given[n]) for n in case.positive}
        for budget in BUDGETS:
            for exact in (True, False):
                arrays = given if budget != "12 KiB" else {n: mapped(folder / n, a) for n, a in given.items()}
                with ooc.device("cpu", budget, threads=2, deterministic=exact):
                    key = f"{name}, {budget}{', deterministic' if exact else ''}"
                    try:
                        found = case.call(**arrays)
                    except ooc.BudgetError as error:
                        yield key, f"BudgetError {error.smallest_bytes}".encode()
                        continue
                parts = found if isinstance(found, tuple) else (found,)
                yield key, b"".join(np.ascontiguousarray(p).tobytes() for p in parts if p is not None)


def mapped(path: Path, array: Any) -> Any:
    """The same numbers in a file."""
    import numpy as np

    found = np.memmap(path, array.dtype, "w+", 0, array.shape)
    found[...] = array
    return found


def graphs() -> Iterator[tuple[str, tuple[int, ...], Any]]:
    """Small networks with what networks have: skips, statistics, dropout, strides, three dimensions."""
    import ooc

    for name in ("plain", "skips", "volume"):
        g = ooc.Graph(name)
        sizes = (3, 12, 11) if name != "volume" else (2, 6, 7, 8)
        h = g.conv(g.input("x", sizes), 8, 3, padding=1, bias=True, activation="relu")
        if name == "skips":
            a = g.activation(g.batch_norm(g.conv(h, 8, 3, padding=1)), "relu")
            h = g.concat(g.add(a, h), g.dropout(h, 0.25))
        h = g.pool(g.conv(h, 6, 3, padding=1, stride=2, bias=True, activation="tanh"), 2)
        logits = g.linear(g.flatten(h), 5, bias=True)
        g.output(logits)
        g.loss("cross_entropy", logits)
        yield name, sizes, g


def networks(_: Path) -> Iterator[tuple[str, bytes]]:
    """Losses and parameters after two steps, and outputs."""
    import numpy as np

    import ooc

    for name, sizes, graph in graphs():
        rng = np.random.default_rng(7)
        x, labels = rng.standard_normal((4, *sizes)).astype(np.float32), rng.integers(0, 5, 4)
        for policy in POLICIES:
            for budget in (None, *LEAST):
                for exact in (True, False):
                    key = f"{name} by {policy}, {budget}{', deterministic' if exact else ''}"
                    how: dict[str, Any] = {"batch": 4, "policy": policy, "device": ooc.device("cpu", threads=2)}
                    try:
                        plan = graph.plan(**how, budget=budget, optimizer=ooc.SGD(0.1, 0.9), deterministic=exact)
                    except (ooc.BudgetError, ooc.UnsupportedError) as error:
                        yield key, type(error).__name__.encode()
                        continue
                    with plan.session(seed=3) as session:
                        losses = [float(session.step(x, labels)) for _ in range(2)]
                        values = session.parameters()
                    parts = (np.ascontiguousarray(values[n]).tobytes() for n in sorted(values))
                    yield key, json.dumps(losses).encode() + b"".join(parts)


def child(out: Path) -> None:
    """Write the digests of all results."""
    sys.path[:0] = [str(HERE.parent / "helpers")]
    with tempfile.TemporaryDirectory() as name:
        found = {
            key: hashlib.sha256(value).hexdigest() for kind in (functions, networks) for key, value in kind(Path(name))
        }  # fmt: skip
    out.write_text(json.dumps(found))


# ---- two commits side by side


def laid_out(commit: str, folder: Path) -> Path:
    """A commit's files, with its extension."""
    subprocess.run(["git", "worktree", "add", "-q", "--detach", str(folder), commit], cwd=ROOT, check=True)
    compiled = [*(ROOT / "ooc").glob("_kernels*.so")]
    same = subprocess.run(["git", "diff", "--quiet", commit, "--", "kernels", "setup.py"], cwd=ROOT).returncode == 0
    if same and compiled:
        shutil.copy2(compiled[0], folder / "ooc")
    else:
        built = folder / "built"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(built), str(folder)], check=True
        )
        return built
    return folder


def digests(root: Path, out: Path) -> dict[str, str]:
    """What the files of a folder compute."""
    env = os.environ | {"PYTHONPATH": str(root)}
    subprocess.run(
        [sys.executable, "-P", str(Path(__file__).resolve()), "--child", str(out)], env=env, cwd=out.parent, check=True
    )
    return dict(json.loads(out.read_text()))


def main() -> int:
    """Compare, and tell what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", metavar="COMMIT")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return 0
    if not 1 <= len(args.commits) <= 2:
        parser.error("expected one or two commits")
    with tempfile.TemporaryDirectory() as name:
        room, sides = Path(name), []
        try:
            for i, commit in enumerate(args.commits):
                sides.append(digests(laid_out(commit, room / f"commit{i}"), room / f"{i}.json"))
        finally:
            for i in range(len(args.commits)):
                subprocess.run(["git", "worktree", "remove", "--force", str(room / f"commit{i}")], cwd=ROOT, capture_output=True)
        if len(sides) == 1:
            sides.append(digests(ROOT, room / "here.json"))
    one, other = sides
    keys = [key for key in one if key in other]
    exact = [key for key in keys if key.endswith("deterministic")]
    wrong = [key for key in exact if one[key] != other[key]]
    for key in wrong:
        print(f"other bits: {key}")
    free = [key for key in keys if key not in set(exact)]
    print(f"deterministic: {len(exact) - len(wrong)} of {len(exact)} equal")
    print(
        f"otherwise: {sum(one[key] == other[key] for key in free)} of {len(free)} equal; {len(one) - len(keys)} are of one alone"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
