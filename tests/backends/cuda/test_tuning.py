"""Which algorithm computes a tile: expected, measured, remembered on disk, and read by the planner."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ooc.backends.cuda import tuning
from ooc.backends.cuda.geometry import Geometry
from ooc.backends.cuda.tuning import MEASURED_AT, AlgorithmChoice, Measurements, TunedCudnn, cache_folder, key_of, winners
from ooc.errors import BackendError, UnsupportedError

GEOMETRY = Geometry(
    "fprop",
    "f32",
    (1, 2, 4, 4),
    (32, 16, 4, 1),
    (3, 2, 3, 3),
    False,
    (1, 3, 2, 2),
    (12, 4, 2, 1),
    (0, 0),
    (1, 1),
    (1, 1),
    1,
    "tf32",
)
IDENTITY = {"gpu": "NVIDIA Test/9", "driver": 1}
DEFAULT, TENSOR, FMA = 0, 1, 3


class Library:
    """The binding's interface, with algorithms that do nothing: (seconds, algorithm, math, workspace)."""

    version = 92000

    def __init__(self, *algorithms: tuple[float, int, int, int]) -> None:
        self.algorithms, self.ran, self.measured = algorithms, [], 0
        self.failing: set[int] = set()
        self.rooms: list[int] = []

    def handle(self) -> str:
        return "handle"

    def conv(self, *_: Any) -> Library:
        return self

    def heuristics(self, handle: Any) -> list[Any]:
        return [(a, m, w, True) for _, a, m, w in self.algorithms]

    def workspace(self, handle: Any, algorithm: int, math: int) -> int:
        if algorithm == 9:
            raise UnsupportedError("no")
        return next(w for _, a, _, w in self.algorithms if a == algorithm)

    def measure(self, handle: Any, stream: int, *buffers: int) -> list[Any]:
        self.measured += 1
        return sorted((s, a, m, w, True) for s, a, m, w in self.algorithms if w <= buffers[-1])

    def run(self, handle: Any, stream: int, algorithm: int, math: int, *rest: Any) -> None:
        self.ran.append((algorithm, math, rest[-1]))
        self.rooms.append(rest[-2])
        if algorithm in self.failing:
            raise BackendError("cuDNN: CUDNN_STATUS_EXECUTION_FAILED")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("OOC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "SCRATCH", 0)
    return tmp_path / "cache"


def tuned(*algorithms: tuple[float, int, int, int]) -> tuple[TunedCudnn, Library]:
    library = Library(*algorithms)
    return TunedCudnn(library, 7, IDENTITY, lambda: 0, lambda nbytes: 77), library


def test_winners_are_faster_or_smaller_than_all_others() -> None:
    given = [
        AlgorithmChoice(3, 0, 0, 0),
        AlgorithmChoice(1, 1, 0, 100),
        AlgorithmChoice(2, 2, 0, 50),
        AlgorithmChoice(2.5, 3, 0, 60),
        AlgorithmChoice(4, 4, 0, 0),
    ]
    assert [c.algorithm for c in winners(given)] == [1, 2, 0]
    assert winners([]) == ()


def test_the_first_expected_algorithm_that_fits() -> None:
    device, library = tuned((1, 5, DEFAULT, 1000), (2, 9, DEFAULT, 0), (3, 1, DEFAULT, 10))
    device.prepare(GEOMETRY, 500).run(1, 2, 3, 4, True)
    assert library.ran == [(1, DEFAULT, 10)]  # 5 needs too much, 9 is not supported
    device.prepare(GEOMETRY, 1000).run(1, 2, 3, 4, True)
    assert library.ran[-1] == (5, DEFAULT, 1000)
    with pytest.raises(UnsupportedError, match="no algorithm"):
        device.prepare(GEOMETRY, 5)


@pytest.mark.parametrize("measured", [False, True])
def test_the_next_algorithm_where_one_fails(measured: bool) -> None:
    device, library = tuned((1, 5, DEFAULT, 0), (2, 6, DEFAULT, 0), (3, 7, DEFAULT, 0))
    prepared = device.prepare(GEOMETRY, 0)
    for _ in range(MEASURED_AT if measured else 0):
        prepared.run(1, 2, 3, 4, False)
    library.failing, library.ran = {5, 6}, []
    for _ in range(2):
        prepared.run(1, 2, 3, 4, True)
    assert [a for a, _, _ in library.ran] == [5, 6, 7, 7]  # what failed is not tried again
    library.failing = {5, 6, 7}
    with pytest.raises(UnsupportedError, match="no algorithm"):
        prepared.run(1, 2, 3, 4, True)


def test_algorithms_that_cannot_be_measured_are_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    device, library = tuned((1, 5, DEFAULT, 0))
    prepared = device.prepare(GEOMETRY, 0)

    def measure(*_: Any) -> list[Any]:
        raise BackendError("cuDNN: CUDNN_STATUS_ALLOC_FAILED")

    monkeypatch.setattr(library, "measure", measure)
    for _ in range(MEASURED_AT + 1):
        prepared.run(1, 2, 3, 4, False)
    assert [a for a, _, _ in library.ran] == [5] * (MEASURED_AT + 1)


def test_algorithms_that_need_little_have_it_without_being_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that all convolutions share holds it; larger ones get what the plan gave them."""
    monkeypatch.setattr(tuning, "SCRATCH", 100)
    device, library = tuned((1, 5, DEFAULT, 1000), (2, 6, DEFAULT, 100), (3, 7, DEFAULT, 0))
    for given in (0, 50, 999):
        device.prepare(GEOMETRY, given).run(1, 2, 3, 4, True)
        assert (library.ran[-1], library.rooms[-1]) == ((6, DEFAULT, 100), 77)
    prepared = device.prepare(GEOMETRY, 1000)
    for _ in range(MEASURED_AT):
        prepared.run(1, 2, 3, 4, False)
    assert (library.ran[-1], library.rooms[-1]) == ((5, DEFAULT, 1000), 4)
    assert [device.needs(GEOMETRY, most) for most in (0, 999, 1000)] == [0, 0, 1000]


def test_exact_math_is_never_given_up() -> None:
    """Whatever cuDNN proposes, f32 without TF32 runs with CUDNN_FMA_MATH."""
    device, library = tuned((1, 5, TENSOR, 0), (2, 6, FMA, 0))
    exact = device.prepare(replace(GEOMETRY, math="fma"), 100)
    for _ in range(MEASURED_AT + 1):
        exact.run(1, 2, 3, 4, False)
    assert {math for _, math, _ in library.ran} == {FMA}
    assert library.ran[0][0] == 5 and library.ran[-1][0] == 6  # 5 was measured with other math: that says nothing


def test_shapes_in_use_are_measured_once_and_remembered(folder: Path) -> None:
    device, library = tuned((3, 0, DEFAULT, 0), (1, 1, DEFAULT, 100), (2, 2, DEFAULT, 50))
    prepared = device.prepare(GEOMETRY, 100)
    for i in range(MEASURED_AT + 2):
        prepared.run(1, 2, 3, 4, False)
        assert library.measured == (i + 1 >= MEASURED_AT)
    assert [a for a, _, _ in library.ran] == [0] * (MEASURED_AT - 1) + [1] * 3
    # Another process, less workspace: what was measured tells the best of what fits, and what it needs.
    again, other = tuned((3, 0, DEFAULT, 0))
    assert again.needs(GEOMETRY, 100) == 100 and again.needs(GEOMETRY, 99) == 50 and again.needs(GEOMETRY, 10) == 0
    assert again.needs(replace(GEOMETRY, groups=2), 100) is None
    again.prepare(GEOMETRY, 60).run(1, 2, 3, 4, False)
    assert other.ran == [(2, DEFAULT, 50)] and other.measured == 0
    (file,) = folder.iterdir()
    assert file.name == "cudnn-NVIDIA-Test-9-1-92000.jsonl"


def test_many_tiles_are_measured_before_the_first() -> None:
    """So that all tiles of a run are computed alike."""
    device, library = tuned((3, 0, DEFAULT, 0), (1, 1, DEFAULT, 100))
    few = device.prepare(GEOMETRY, 100, tiles=MEASURED_AT - 1)
    few.run(1, 2, 3, 4, False)
    assert library.measured == 0
    many = device.prepare(replace(GEOMETRY, groups=2), 100, tiles=MEASURED_AT)
    for _ in range(3):
        assert many.run(1, 2, 3, 4, False) == 1
    assert library.measured == 1


def test_what_had_no_room_is_measured_once_more() -> None:
    """What was measured within little workspace says nothing of algorithms that want more."""
    device, library = tuned((3, 0, DEFAULT, 0), (1, 1, DEFAULT, 100), (2, 2, DEFAULT, 5000))
    device.prepare(GEOMETRY, 50, tiles=9).run(1, 2, 3, 4, False)
    assert library.measured == 1 and library.ran[-1][0] == 0
    for room, measured, best in ((99, 1, 0), (100, 2, 1), (4999, 2, 1), (5000, 3, 1), (9000, 3, 1), (50, 3, 0)):
        device.prepare(GEOMETRY, room, tiles=9).run(1, 2, 3, 4, False)
        assert (library.measured, library.ran[-1][0]) == (measured, best), room
    again, other = tuned((3, 0, DEFAULT, 0), (1, 1, DEFAULT, 100), (2, 2, DEFAULT, 5000))  # another process reads it
    again.prepare(GEOMETRY, 5000, tiles=9).run(1, 2, 3, 4, False)
    assert other.measured == 0 and other.ran[-1][0] == 1


def test_what_was_planned_for_runs_while_it_was_not_measured() -> None:
    """cuDNN never proposes some of its fastest."""
    device, _ = tuned((3, 0, DEFAULT, 0), (1, 7, DEFAULT, 100))
    device.prepare(GEOMETRY, 50, tiles=9).run(1, 2, 3, 4, False)  # measured without room for it
    assert device.prepare(GEOMETRY, 100, planned=7).run(1, 2, 3, 4, True) == 7
    assert device.prepare(GEOMETRY, 99, planned=7).run(1, 2, 3, 4, True) == 0
    assert device.prepare(replace(GEOMETRY, groups=2), 100, planned=9).run(1, 2, 3, 4, True) == 0  # not supported


def test_repeatable_algorithms_are_chosen_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    device, library = tuned((1, 0, DEFAULT, 0), (2, 1, DEFAULT, 10), (3, 3, DEFAULT, 0))
    monkeypatch.setattr(library, "heuristics", lambda handle: [(0, 0, 0, False), (1, 0, 10, True), (3, 0, 0, False)])
    device.prepare(GEOMETRY, 100, tiles=9).run(1, 2, 3, 4, False)
    assert library.measured == 1 and library.ran[-1][0] == 0
    for _ in range(2 * MEASURED_AT):
        assert device.prepare(GEOMETRY, 100, tiles=9, repeatable=True).run(1, 2, 3, 4, False) == 1
    assert library.measured == 1
    with pytest.raises(UnsupportedError, match="no algorithm"):
        device.prepare(GEOMETRY, 5, repeatable=True)


def test_results_that_accumulate_are_never_measured() -> None:
    device, library = tuned((1, 0, DEFAULT, 0))
    prepared = device.prepare(GEOMETRY, 0)
    for _ in range(2 * MEASURED_AT):
        prepared.run(1, 2, 3, 4, True)
    assert library.measured == 0


HOSTILE = (
    "not json", "[]", "{}", '{"tile": "a", "choices": [[1, 2, 3, 4]]}', '{"tile": 3, "choices": [], "within_bytes": 1}',
    '{"tile": "a", "choices": [[1, 2]], "within_bytes": 1}', '{"tile": "a", "choices": 5, "within_bytes": 1}',
    '{"tile": "a", "choices": [["x", 0, 0, 0]], "within_bytes": 1}', 
    '{"tile": "a", "choices": [[1, 2, 3, null]], "within_bytes": 1}',
    '{"tile": "a", "choices": [], "within_bytes": null}', "__import__('os')", '"' * 10_000,
)  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE)
def test_a_spoilt_cache_is_ignored_with_a_warning(line: str) -> None:
    first = Measurements(IDENTITY)
    first.add("k", [AlgorithmChoice(1.0, 2, 3, 4)], 10)
    with first.path.open("a") as file:
        file.write(line + "\n")
    with pytest.warns(UserWarning, match=r"1 line\(s\) are not measurements"):
        again = Measurements(IDENTITY)
    assert again.best("k", 10) == AlgorithmChoice(1.0, 2, 3, 4)


def test_a_cache_that_cannot_be_used_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OOC_CACHE", str(tmp_path / "file"))  # a file where a folder should be
    held = Measurements(IDENTITY)
    held.add("k", [AlgorithmChoice(1.0, 2, 3, 4)], 10)
    assert held.best("k", 10) is not None
    monkeypatch.setenv("OOC_CACHE", str(tmp_path))
    Measurements(IDENTITY).path.write_bytes(b"\xff\xfe\x00")
    assert Measurements(IDENTITY).known == {}


def test_where_measurements_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OOC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ooc"


def test_a_geometry_has_one_key() -> None:
    assert key_of(GEOMETRY) == key_of(replace(GEOMETRY)) != key_of(replace(GEOMETRY, dilation=(2, 1)))
    json.loads(key_of(GEOMETRY))
