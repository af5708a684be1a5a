"""The instruction set of our own kernels: the best that the processor has, or that OOC_ISA allows. What the tests of this process
compute is computed with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANGS

from ooc import native

ROOT = Path(__file__).parents[3]
# Better ones last; what a processor says in /proc/cpuinfo where it has them.
NEEDED = {"base": set(), "avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512vl", "avx512dq", "avx512bw"}}  # type: dict[str, set[str]]
SHOWN = "from ooc import native; print(native.kernels.isa())"


def flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {word for line in lines if line.startswith("flags") for word in line.partition(":")[2].split()}


pytestmark = [
    pytest.mark.skipif(native.kernels is None, reason="needs the compiled extension"),
    pytest.mark.skipif(not flags(), reason="this processor does not say what it has as an x86-64 one does"),
]


def best(allowed: str) -> str:
    """The best instruction set of this processor that is no better than what is allowed."""
    isas = list(NEEDED)
    return next(isa for isa in reversed(isas[: isas.index(allowed or isas[-1]) + 1]) if NEEDED[isa] <= flags())


def test_these_tests_run_on_the_best_that_is_allowed() -> None:
    assert native.kernels is not None
    assert native.kernels.isa() == best(os.environ.get("OOC_ISA", ""))


def shown(allowed: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OOC_ISA": allowed}
    return subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, timeout=HANGS, check=False, env=env)


@pytest.mark.parametrize("allowed", ["", *NEEDED])
def test_the_environment_allows_less(allowed: str) -> None:
    done = shown(allowed)
    assert (done.stdout, done.returncode) == (f"{best(allowed)}\n", 0), done.stderr


def test_another_name_is_refused_in_one_line() -> None:
    done = shown("sse9")
    assert done.returncode and done.stderr.splitlines()[-1] == "ValueError: OOC_ISA must be avx512, avx2 or base, not sse9"
