"""The VGG16 example: its table of shapes, the whole of it on tiny pictures, and a small network end to end."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sweeps import swept
from waiting import HANGS

import ooc

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
import checking  # noqa: E402
import models  # noqa: E402
import training  # noqa: E402
import vgg16  # noqa: E402

SMALL = models.Network(
    "small",
    (
        models.Conv("conv1", 8),
        models.Conv("conv2", 8, pool=2),
        models.Conv("conv3", 16, pool=2),
        models.Linear("fc4", 32, dropout=0.5),
        models.Linear("fc5", None, activation=None),
    ),
    smallest=16,
)
TINY = ["--batch", "2", "--images", "16", "--classes", "10", "--budget", "64 KiB"]
# The instruction sets of our own kernels, and of oneDNN's, which may be newer than the machine's: then its own are used.
OWN = [{"OOC_ONEDNN": "off", "OOC_ISA": isa} for isa in ("base", "avx2", "avx512")]
ONEDNN = [
    {"OOC_ISA": ours, "ONEDNN_MAX_CPU_ISA": theirs} for ours, theirs in (("base", "SSE41"), ("avx2", "AVX2"), ("", "DEFAULT"))
]
# A network, its pictures' side, and two budgets; every seed in one process, where plans are remembered.
PROGRAM = """
import sys
import ooc, models, training, vgg16

name, side, *budgets = sys.argv[1:]
convs = models.Conv("conv1", 8), models.Conv("conv2", 16, pool=2)
small = models.Network("small", (*convs, models.Linear("fc3", 32, dropout=0.5), models.Linear("fc4", None, None)), smallest=16)
two, one = (models.layers_of(small if name == "small" else name, int(side), n, 10) for n in (2, 1))
usual = ooc.device("cpu", budgets[0])
tight, roomy = (ooc.device("cpu", budget, deterministic=True) for budget in budgets)
for seed in range(5):
    weights = training.make_weights(two, seed)
    x, labels = training.pictures(2, int(side), 10, seed)
    assert vgg16.right_layers(two, vgg16.Job(weights, x, labels, usual, None, seed))
    jobs = (vgg16.Job(weights, x[:1], labels[:1], device, None, seed) for device in (tight, roomy))
    assert vgg16.same_bits(one, *jobs)
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that takes a second where VGG16 takes ten."""
    monkeypatch.setattr(vgg16, "VGG16", SMALL)


def needs_pictures() -> None:
    pytest.importorskip("matplotlib", reason="the pictures are matplotlib's")


# ---- shapes


def test_vgg16_is_the_one_of_the_paper() -> None:
    layers = models.layers_of("vgg16", side=224, batch=1)
    assert sum(s.parameters for s in layers) == 138_357_544
    assert 15.3e9 < sum(s.macs for s in layers) < 15.5e9
    assert [s.layer.name for s in layers if isinstance(s.layer, models.Conv) and s.layer.pool] == [
        "conv1_2", "conv2_2", "conv3_3", "conv4_3", "conv5_3",
    ]  # fmt: skip
    assert [s.w for s in layers[-3:]] == [(4096, 25088), (4096, 4096), (1000, 4096)]
    assert len(layers) == 16 and layers[1].y == (1, 64, 224, 224) and layers[1].z == (1, 64, 112, 112)


@pytest.mark.parametrize(("name", "parameters"), [("vgg11", 132_863_336), ("vgg16", 138_357_544), ("vgg19", 143_667_240)])
def test_parameters_of_the_family(name: str, parameters: int) -> None:
    assert sum(s.parameters for s in models.layers_of(name, 224, 7)) == parameters


@pytest.mark.parametrize(("side", "features"), [(32, 512), (63, 512), (64, 2048), (96, 4608)])
def test_the_classifier_follows_the_size_of_the_pictures(side: int, features: int) -> None:
    layers = models.layers_of("vgg16", side, batch=5, classes=12)
    assert layers[13].x == (5, features) and layers[-1].y == (5, 12)
    for s, following in pairwise(layers):
        assert math.prod(s.z) == math.prod(following.x)


@pytest.mark.parametrize("sizes", [(31, 1, 10), (32, 0, 10), (32, 1, 0)])
def test_sizes_too_small(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected at least"):
        models.layers_of("vgg16", *sizes)


# ---- the example


@pytest.mark.slow
def test_vgg16_on_tiny_pictures() -> None:
    needs_pictures()
    arguments = ["--batch", "2", "--images", "32", "--budget", "32MiB"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "vgg16.py"), *arguments], capture_output=True, text=True, timeout=HANGS, check=False,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_WAIT_POLICY": "passive"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for passing in ("forward", "backward"):
        named = {line.split()[0] for line in lines if f" {passing} " in line}
        assert named >= {s.layer.name for s in models.layers_of("vgg16", 32, 2)} | {"loss"}
    assert lines[-2].startswith("check     ok: every layer of 2 pictures, forward and backward, against NumPy on the same inputs")
    assert lines[-1] == "check     ok: deterministic=True, 34 results of 1 picture have the same bits under 1 MiB and 4 MiB"
    assert any(line.startswith("conv1_1        backward 2x3x32x32 ") for line in lines)


@pytest.mark.parametrize("spill", [False, True])
def test_a_small_network(small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], spill: bool) -> None:
    needs_pictures()
    folder = tmp_path / "made"
    assert vgg16.main([*TINY, *(["--spill", str(folder)] if spill else [])]) == 0
    out = capsys.readouterr().out
    assert "check     ok: every layer of 2 pictures, forward and backward, " in out
    assert "check     ok: deterministic=True, 12 results of 1 picture have the same bits under 64 KiB and 256 KiB" in out
    peak = next(line for line in out.splitlines() if line.startswith("device    peak"))
    assert 0 < int(peak.split("(")[1].split()[0]) <= 64 << 10
    assert ("in files" in out) == spill
    assert not folder.exists()


def test_null_predicts_only(small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vgg16.main([*TINY, "--backend", "null", "--spill", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "check     none: the null backend" in out and "predicted" in out and "speed " not in out
    assert list(tmp_path.iterdir()) == []


def checked(setting: dict[str, str], *arguments: str) -> None:
    """The example's check of five seeds in a process with other kernels."""
    needs_pictures()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=HANGS, check=False,
        env={**os.environ, "PYTHONPATH": f"{EXAMPLES.parent}{os.pathsep}{EXAMPLES}", "OMP_WAIT_POLICY": "passive", **setting},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("check     ok: ") == 10


@pytest.mark.parametrize("setting", OWN, ids=lambda s: s["OOC_ISA"])
def test_the_check_holds_whatever_the_kernels_and_the_seed(setting: dict[str, str]) -> None:
    checked(setting, "small", "16", "64 KiB", "256 KiB")


@pytest.mark.slow
@pytest.mark.parametrize("setting", [*OWN, *ONEDNN], ids=lambda s: "-".join(s.values()))
def test_the_check_of_vgg16_holds_whatever_the_kernels_and_the_seed(setting: dict[str, str]) -> None:
    checked(setting, "vgg16", "32", "1 MiB", "4 MiB")


def test_rounding_of_a_layer_is_no_error_of_the_others(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels that round otherwise move units across zero; what follows from that is right for these units."""
    needs_pictures()
    right, flipped = ooc.linear, []

    def rounding(x: Any, w: Any, b: Any, *, out: Any, **options: Any) -> Any:
        right(x, w, b, out=out, **options)
        if options["activation"] == "relu" and not ooc.current_device().deterministic:
            shut = np.flatnonzero(out.ravel() == 0)[:2]
            out.ravel()[shut] = 1e-6 * out.max()
            flipped.extend(shut)
        return out

    monkeypatch.setattr(ooc, "linear", rounding)
    assert vgg16.main(TINY) == 0
    assert flipped and capsys.readouterr().out.count("check     ok: ") == 2


@pytest.mark.parametrize(
    ("function", "result"), [("conv", "y"), ("conv_backward", "dw"), ("conv_backward", "dx"), ("linear", "y")]
)
def test_a_wrong_result_is_status_1(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], function: str, result: str
) -> None:
    needs_pictures()
    right = getattr(ooc, function)

    def wrong(x: Any, w: Any, *others: Any, **options: Any) -> Any:
        made = right(x, w, *others, **options)
        out = options.get(result, options.get("out"))
        if w.shape[0] in (16, 32):  # conv3 or fc4
            (out[0] if isinstance(out, tuple) else out)[0] *= 1.001
        return made

    monkeypatch.setattr(ooc, function, wrong)
    assert vgg16.main(TINY) == 1
    out = capsys.readouterr().out
    layer = "fc4" if function == "linear" else "conv3"
    assert "check     FAILED: every layer" in out and f"({layer}.{result}; allowed" in out and "ok: deterministic" in out


def test_bits_that_depend_on_the_budget_are_status_1(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_pictures()
    right = ooc.conv_backward

    def wrong(x: Any, w: Any, dy: Any, **options: Any) -> Any:
        made = right(x, w, dy, **options)
        if w.shape[0] == 16 and ooc.current_device().device_bytes == 256 << 10:
            options["db"][0] = np.nextafter(options["db"][0], np.float32(1))
        return made

    monkeypatch.setattr(ooc, "conv_backward", wrong)
    assert vgg16.main(TINY) == 1
    out = capsys.readouterr().out
    assert "FAILED: deterministic=True, 12 results of 1 picture have other bits under 64 KiB and 256 KiB: conv3.db\n" in out
    assert "ok: every layer" in out


def test_not_a_number_is_infinitely_wrong() -> None:
    one = np.ones(3, np.float32)
    assert checking.difference(one, one) == 0
    assert checking.difference(one * np.nan, one) == math.inf


def test_the_comparison_knows_strides_and_odd_sizes() -> None:
    """What NumPy makes of a layer is what ooc makes of it, where neither padding nor pooling comes out even."""
    layer = models.Conv("conv", 5, taps=3, padding=2, stride=2, pool=2)
    net = models.Network("odd", (layer, models.Linear("fc", None, None)), channels=2, smallest=5)
    layers = models.layers_of(net, side=11, batch=3, classes=4)
    weights, compare = training.make_weights(layers, 1), checking.Comparison(training.make_weights(layers, 1), 1)
    x = np.random.default_rng(1).standard_normal(layers[0].x, np.float32)
    with ooc.device("cpu", "16 KiB"):
        training.Step(layers, weights, training.Storage(), 1, seen=compare.see).run(x, np.arange(3))
    assert compare.right and compare.compared == 2 + 4 + 5 and 0 < compare.worst < 1e-5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget", "5x"], "budget='5x'"),
        (["--budget", "0"], "at least 1 byte"),
        (["--images", "15"], "side 15: expected at least 16"),
        (["--batch", "0"], "batch 0: expected at least 1"),
        (["--batch", "two"], "--batch"),
        (["--check", "-1"], "--check"),
        (["--spill", __file__], "Not a directory"),
        (["--spill", "/nowhere/at/all"], "/nowhere/at/all: No such file"),
    ],
)
def test_errors_are_one_line(small: None, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert vgg16.main([*TINY, *arguments]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("vgg16: ") and says in err and err.count("\n") == 1 and not out


def test_no_room_is_told_before_anything_is_written(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert vgg16.main([*TINY, "--spill", str(tmp_path / "made")]) == 2
    assert "of disk but 1000 B are free" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_pictures_are_all_different() -> None:
    needs_pictures()
    x, labels = training.pictures(4, 40, 3, seed=0)
    assert labels.tolist() == [0, 1, 2, 0] and 0.5 < x.std() < 2
    assert all(np.abs(x[i] - x[j]).mean() > 0.1 for i in range(4) for j in range(i))


# ---- as a whole network

WHOLE = ["--batch", "4", "--images", "32", "--width", "0.125", "--classes", "10", "--budget", "1 MiB"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """The lines that a run prints, by their first word."""
    assert vgg16.main([*arguments]) == 0
    lines = capsys.readouterr().out.replace("\r", "\n").splitlines()
    return {line.split()[0]: line for line in lines if line.strip()}


def test_a_whole_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_pictures()
    lines = told(capsys, *WHOLE, "--policy", "auto", "--trace", str(tmp_path / "t.json"))
    assert lines["policy"].startswith("policy    auto, budget 1 MiB") and "per image" in lines["step"]
    assert math.isfinite(float(lines["loss"].split()[1])) and "planned" in lines["peak"]
    assert '"traceEvents"' in (tmp_path / "t.json").read_text()


def test_a_whole_network_that_is_only_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, *WHOLE, "--policy", "stream", "--backend", "p100")
    assert "nothing was computed" in lines["step"] and "loss" not in lines


@pytest.mark.parametrize("epochs", swept((2, 3), suite=1))
def test_training_on_digits(epochs: int, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    budget = ["--batch", "128", "--budget", "12 MiB"]
    assert vgg16.main(["--train", *budget, "--epochs", str(epochs)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in told]
    assert len(losses) == epochs and losses[-1] < losses[0]
    assert "of 359 held-out pictures right" in told[-1]


@pytest.mark.parametrize("fits", swept(("stream", "auto"), suite=1))
def test_policies_beside_each_other(fits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_pictures()
    picture = tmp_path / "made" / "policies.png"
    lines = told(capsys, *WHOLE, "--compare", f"keep,modnn,{fits}", "--plot", str(picture))
    assert lines["keep"].split()[1] == "needs" and lines[fits].split()[-1] == "s"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "wrong",
    [
        ["--policy", "best"],
        ["--compare", "all,best"],
        ["--policy", "modnn", "--budget", "1"],
        ["--policy", "keep", "--images", "8"],
    ],
)
def test_what_makes_no_whole_network(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert vgg16.main([*WHOLE, *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1
