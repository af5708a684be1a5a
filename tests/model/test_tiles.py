"""What measured tiles teach the model, and calibrations that change."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.model.calibration import DEVICES, load_device
from ooc.model.cost import Compute, Copy, Model, sample_of
from ooc.model.gaussian import CAUTION, NOISE, SPREAD, Sample, SampleRows
from ooc.schedule.work import Moved, Work

pytestmark = pytest.mark.quick

KEY = "conv.fprop/f32/native"
COPIES = dict.fromkeys(("read", "h2d", "d2h", "write"), Copy(0.0, 0.0, 1e9))


def sample(positions: float, seconds: float, k: float = 16.0) -> Sample:
    shape = (positions, 16.0, k, 16.0, 9.0, 1.0)
    return Sample(2 * math.prod(shape) / 16, 4 * positions, shape, seconds)


def modelled(*samples: Sample) -> Model:
    return Model("m", COPIES, {"*/*/*": Compute(0.0, 1e9), KEY: Compute(0.0, 1e9, samples=samples)})


def seconds(model: Model, s: Sample) -> float:
    return float(model.compute(KEY).seconds(s.effort, s.nbytes, 1, s.shape))


def test_a_tile_measured_often_is_predicted_as_measured() -> None:
    """Measurements are noisy: one is believed by four fifths."""
    slow, fast = sample(64, 1e-3), sample(1 << 16, 0.3)
    model = modelled(*[slow] * 8, *[fast] * 8)
    assert seconds(model, slow) == pytest.approx(slow.seconds, rel=0.1)
    assert seconds(model, fast) == pytest.approx(fast.seconds, rel=0.1)
    line, once = slow.effort / 1e9, seconds(modelled(slow, fast), slow)
    assert 0.7 < math.log(once / line) / math.log(slow.seconds / line) < 0.9


def test_what_is_near_is_alike_and_what_is_far_is_the_line_with_caution() -> None:
    known = sample(1024, 5.0)
    model = modelled(known)
    near, far = sample(1100, 0.0), sample(1 << 24, 0.0, k=2.0)
    line = near.effort / 1e9
    assert seconds(model, near) > 1.5 * line  # towards what was measured
    assert seconds(model, far) == pytest.approx(far.effort / 1e9 * math.exp(CAUTION * SPREAD), rel=1e-3)


def test_the_model_says_how_sure_it_is() -> None:
    known, far = sample(1024, 1e-3), sample(1 << 24, 0.0, k=2.0)
    entry = modelled(known).compute(KEY)
    assert entry.spread(known.shape) < 1.5 * NOISE
    assert entry.spread(far.shape) == pytest.approx(math.hypot(SPREAD, NOISE), rel=1e-2)
    assert modelled().spread([Work(KEY, 1.0, 1, known.shape)]) == math.hypot(SPREAD, NOISE)
    work = Work(KEY, known.effort, int(known.nbytes), known.shape)
    assert modelled(known).spread([work, work]) == pytest.approx(entry.spread(known.shape))


def test_many_shapes_at_once_are_each_of_them() -> None:
    model = modelled(sample(64, 1e-3), sample(4096, 1e-3))
    sizes = np.array([64.0, 300.0, 1e6])
    shape = (sizes, 16.0, 16.0, 16.0, 9.0, 1.0)
    together = model.compute(KEY).seconds(sizes, sizes, 1, shape)
    each = [model.compute(KEY).seconds(v, v, 1, (v, *shape[1:])) for v in sizes]
    np.testing.assert_allclose(together, each, rtol=1e-5)  # factors have the digits of f32


def rows(*errors: float, **more: float) -> list[dict[str, Any]]:
    return [{"error": e, "unsteady": [], **more} for e in errors]


def test_rows_of_samples_are_the_samples() -> None:
    some = (sample(4, 1.0), sample(8, 0.25), sample(16, 3.5))
    rows = SampleRows(some)
    assert rows == some and hash(rows) == hash(some) and list(rows[1:]) == [*some[1:]] and rows[-1] == some[-1]
    assert rows != some[:2] and SampleRows([]) == () and not SampleRows([])


def test_a_calibration_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text((DEVICES / "cpu.json").read_text())
    first = load_device(path)
    assert load_device(path) is first and ooc.device("cpu", calibration=path).model is first
    path.write_text(path.read_text().replace(json.dumps(first.name), '"another"'))
    assert load_device(path).name == "another" != first.name
    path.write_text("{")
    with pytest.raises(ValueError, match=r"mine\.json"):
        load_device(path)


def test_samples_say_what_was_done() -> None:
    assert sample_of(Moved("read", 4096, 4), 1e-3) == (4, 4096, (4096, 1024), 1e-3)
    work = Work("conv.fprop/f32/native", 2.0, 3, (1.0,) * 6)
    assert sample_of(work, 0.5) == (2.0, 3.0, (1.0,) * 6, 0.5)
