"""What there is of memory is what the control groups of a process leave of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ooc
from ooc.backends.cpu.backend import CpuBackend
from ooc.backends.cpu.limits import memory_limit

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
GIB = 1 << 30
NONE = 9223372036854771712  # what version 1 says where there is no limit


def system(root: Path, groups: str, limits: dict[str, object]) -> Path:
    """A tree of the files that Linux has."""
    for name, value in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{at}": v for at, v in limits.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "least"),
    [
        ("0::/", {"memory.max": GIB}, GIB),  # a container sees itself as the root
        ("0::/a/b", {"a/memory.max": "max", "a/b/memory.max": GIB}, GIB),
        ("0::/a/b", {"a/memory.max": GIB, "a/b/memory.max": 2 * GIB}, GIB),  # the group above has less
        ("0::/a/b", {"a/memory.max": GIB, "a/b/memory.max": "max"}, GIB),
        ("0::/a", {"a/memory.max": "max"}, PHYSICAL),
        ("0::/a", {"a/memory.max": 1 << 60}, PHYSICAL),
        ("0::/a", {"a/memory.max": "nonsense"}, PHYSICAL),
        ("0::/../../b", {"memory.max": GIB}, GIB),  # of a process beside the container
        ("4:memory:/docker/x\n0::/", {"memory/docker/x/memory.limit_in_bytes": GIB}, GIB),
        ("4:memory:/docker/x", {"memory/memory.limit_in_bytes": GIB}, GIB),  # the mount is the group's own
        ("4:cpu,memory:/x", {"memory/x/memory.limit_in_bytes": NONE, "memory/memory.limit_in_bytes": GIB}, GIB),
        ("4:memory:/x\n0::/x", {"memory/x/memory.limit_in_bytes": NONE}, PHYSICAL),
        ("1:name=systemd:/x\n0::/s", {"unified/s/memory.max": GIB}, GIB),  # both versions
        ("1:cpu:/x", {"memory/x/memory.limit_in_bytes": GIB}, PHYSICAL),  # another controller's group
        ("nonsense", {}, PHYSICAL),
    ],
)
def test_the_least_counts(groups: str, limits: dict[str, object], least: int, tmp_path: Path) -> None:
    assert memory_limit(system(tmp_path, groups, limits)) == min(least, PHYSICAL)


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) == PHYSICAL


def test_a_share_is_of_that() -> None:
    assert 0 < memory_limit() <= PHYSICAL and CpuBackend().total_bytes == memory_limit()
    assert ooc.device("cpu", budget="50%").device_bytes == memory_limit() // 2
