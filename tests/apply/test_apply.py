"""`ooc apply`, from file to file: against ONNX Runtime on the whole, for every format and budget."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import crossed
from waiting import HANGS

import ooc
from ooc.apply import verify
from ooc.apply.job import Application
from ooc.cli.apply import watched
from ooc.cli.main import main
from ooc.ir.region import whole

onnx = pytest.importorskip("onnx")
onnx_files = pytest.importorskip("onnx_files")
apply_files = pytest.importorskip("apply_files")
runtime = pytest.importorskip("onnxruntime")
helper = onnx.helper
node, picture_network, volume_network = apply_files.node, apply_files.picture_network, apply_files.volume_network

Array = np.ndarray[Any, Any]
CLOSE = 1e-5  # of the largest value


def expected(model: Path, x: Array) -> Array:
    """The same by ONNX Runtime, whole."""
    session = runtime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    found: Array = session.run(None, {"x": np.ascontiguousarray(x, np.float32)})[0]
    return found


def close(found: Array, wanted: Array) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE * float(np.abs(wanted).max()))


@pytest.fixture
def picture(tmp_path: Path) -> Array:
    """A picture of odd sizes, as files."""
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (61, 83, 3), np.uint8)
    np.save(tmp_path / "x.npy", image)
    sink = ooc.create(tmp_path / "x.png", image.shape, image.dtype, "yxc")
    sink.write(whole(image.shape), image)
    sink.close()
    picture_network(tmp_path / "m.onnx")
    return image


def applied(tmp_path: Path, *args: str) -> int:
    """`ooc apply m.onnx` with files of a folder."""
    given = [a.replace("@", f"{tmp_path}/") for a in args]
    return main(["apply", str(tmp_path / "m.onnx"), *given])


@pytest.mark.parametrize(("suffix", "budget"), crossed(["npy", "zarr", "h5:/y", "tif"], ["1 GiB", "300 KiB", "100 KiB"], every=2))
def test_a_picture_into_every_format(picture: Array, tmp_path: Path, suffix: str, budget: str) -> None:
    """Channels turned and scaled inside the tile; the whole size counts, whatever the tiles are."""
    files = f"@x.npy --axes yxc --output @y.{suffix} --budget {budget.replace(' ', '')}".split()
    assert applied(tmp_path, "--input", *files, "--pre", "bgr, / 255, mean 0.5 0.4 0.3") == 0
    x = (picture[:, :, ::-1].astype(np.float32) / 255 - np.float32([0.5, 0.4, 0.3])).transpose(2, 0, 1)[None]
    with ooc.open(tmp_path / f"y.{suffix}") as made:
        found = np.empty(made.shape, made.dtype)
        made.read(whole(made.shape), found)
    close(found.reshape(1, 4, 61, 83), expected(tmp_path / "m.onnx", x))


def test_labels_are_chosen_inside_the_tile(picture: Array, tmp_path: Path) -> None:
    """No tensor of all classes is written: the output is a picture of labels."""
    files = ["--input", "@x.png", "--output", "@y.png", "--budget", "11MiB", "--post", "argmax", "--pre"]
    assert applied(tmp_path, *files, "/ 255") == 0
    wanted = expected(tmp_path / "m.onnx", (picture.astype(np.float32) / 255).transpose(2, 0, 1)[None])
    top = np.sort(wanted[0], axis=0)
    clear = top[-1] - top[-2] > 1e-4
    with ooc.open(tmp_path / "y.png") as made:
        found = np.empty(made.shape, made.dtype)
        made.read(whole(made.shape), found)
    assert found.shape == (61, 83) and found.dtype == np.uint8
    assert (found == wanted[0].argmax(0))[clear].all() and clear.mean() > 0.9


@pytest.mark.parametrize(
    ("steps", "meaning"),
    [
        ("sigmoid, > 0.5", lambda y: 1 / (1 + np.exp(-y)) > 0.5),
        ("channel 2 0, scale 100, cast int16", lambda y: np.rint(np.float32(100) * y[:, [2, 0]])),
        ("softmax, channel 1", lambda y: (np.exp(y) / np.exp(y).sum(1, keepdims=True))[:, [1]]),
        ("crop 3, add 1", lambda y: y[:, :, 3:-3, 3:-3] + 1),
    ],
)
def test_steps_behind_the_network(picture: Array, tmp_path: Path, steps: str, meaning: Any) -> None:
    files = ["--input", "@x.npy", "--axes", "yxc", "--output", "@y.npy", "--budget", "200KiB", "--pre"]
    assert applied(tmp_path, *files, "/ 255", "--post", steps) == 0
    y = expected(tmp_path / "m.onnx", picture.transpose(2, 0, 1)[None].astype(np.float32) / 255)
    wanted, found = meaning(y), np.load(tmp_path / "y.npy")
    assert found.shape == wanted.shape
    off = np.abs(found.astype(float) - wanted.astype(float))
    if found.dtype.kind in "iu":  # a value in the middle may go either way
        assert off.max() <= 1 and (off > 0).mean() < 0.01
    else:
        assert off.max() <= 1e-4 * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("budget", ["1GiB", "200KiB", "60KiB"])
def test_a_volume(tmp_path: Path, budget: str) -> None:
    """An instance norm needs all of the volume: an extra pass, exact."""
    volume_network(tmp_path / "m.onnx")
    x = np.random.default_rng(4).integers(0, 1000, (26, 30, 22)).astype(np.int16)
    sink = ooc.create(tmp_path / "x.nii", x.shape, x.dtype, "zyx")
    sink.write(whole(x.shape), x)
    sink.close()
    assert applied(tmp_path, *["--input", "@x.nii", "--output", "@y.zarr", "--pre"], "/ 1000", "--budget", budget) == 0
    with ooc.open(tmp_path / "y.zarr") as made:
        found = np.empty(made.shape, made.dtype)
        made.read(whole(made.shape), found)
    close(found, expected(tmp_path / "m.onnx", x[None, None].astype(np.float32) / 1000))


def test_sizes_that_are_mirrored(picture: Array, tmp_path: Path) -> None:
    """--pad-to: the network sees multiples, the result has the size of the input."""
    assert applied(tmp_path, *["--input", "@x.npy", "--axes", "yxc", "--output", "@y.npy", "--pad-to", "16"]) == 0
    wide = np.pad(picture, ((0, 3), (0, 13), (0, 0)), mode="reflect").transpose(2, 0, 1)[None]
    close(np.load(tmp_path / "y.npy"), expected(tmp_path / "m.onnx", wide)[:, :, :61, :83])


def test_the_plan_says_what_it_would_do(picture: Array, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert applied(tmp_path, *["--input", "@x.png", "--plan", "--json", "--budget", "20MiB"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["input"] == [1, 3, 61, 83] and told["output"] == [1, 4, 61, 83]
    assert told["reach"] == [None, None]  # through the gate
    assert told["decoding"] + told["peaks"]["device"] <= 20 << 20
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("y")]
    assert applied(tmp_path, *["--input", "@x.png", "--plan", "--outputs", "b"]) == 0
    assert "sees 3, 3 positions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ("--input @x.png", "--output"),
        ("--input @none.png --output @y.npy", "none.png"),
        ("--input @x.npy --output @y.npy --axes yx", "axes"),
        ("--input @x.npy --axes yxc --output @y.npy --pre wash", "no step 'wash'"),
        ("--input @x.npy --axes yxc --output @y.npy --post argmax,softmax", "softmax"),
        ("--input @x.npy --axes yxc --output @y.npy --outputs none", "no tensor none"),
        ("--input @x.npy --axes yxc --output @y.npy --budget 100", "at least"),
        ("--input @x.npy --axes yxc --output @y.png", "y.png"),
        ("--input @x.npy --axes yxc --output @x.npy", "x.npy"),
        ("--input @x.npy --axes xyc --output @y.txt", "y.txt"),
    ],
)
def test_what_does_not_fit_is_one_line(
    picture: Array, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: str, told: str
) -> None:
    """Nothing is written, and what is wrong is named."""
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert applied(tmp_path, *args.split()) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1, error
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


# ---- plans that are searched for apart


@pytest.mark.parametrize("budget", [None, "300KiB", "1KiB"])
def test_a_plan_of_another_process_is_the_same(
    picture: Array, tmp_path: Path, budget: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results, what is told, and what is refused: by the same plan, with the weights here."""
    monkeypatch.setattr("ooc.apply.apart.FEW", 0)
    found = []
    for apart in (False, True):
        job = Application(
            str(tmp_path / "m.onnx"), str(tmp_path / "x.png"), str(tmp_path / "y.npy"), budget, overwrite=True, apart=apart
        )
        if budget == "1KiB":
            with pytest.raises(ooc.BudgetError) as caught:
                job.prepare()
            found.append((str(caught.value), caught.value.smallest_bytes))
            continue
        job.prepare()
        told = json.loads(job.plan.to_json())
        job.run()
        found.append((told, np.load(tmp_path / "y.npy").tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("interpreter", ["/bin/false", "/nowhere/python"])
def test_where_no_process_can_be_started_it_is_planned_here(
    interpreter: str, picture: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc.apply.apart.FEW", 0)
    monkeypatch.setattr("sys.executable", interpreter)
    files = ["--input", "@x.png", "--output", "@y.npy", "--budget", "12MiB"]
    assert applied(tmp_path, *files) == 0 and (tmp_path / "y.npy").exists()


# ---- windows


def importance(size: tuple[int, ...], blend: str) -> Array:
    """MONAI's compute_importance_map, sigma_scale 0.125, as its formula says."""
    if blend == "constant":
        return np.ones(size, np.float32)
    found = np.ones(())
    for n in size:
        far = np.arange(-(n - 1) / 2, (n - 1) / 2 + 1)
        found = np.multiply.outer(found, np.exp(far**2 / (-2 * (0.125 * n) ** 2)))
    return np.clip(found, max(found.min(), 1e-3), None)


def sliding(model: Path, x: Array, roi: int, overlap: float, blend: str) -> Array:
    """MONAI's sliding_window_inference as its documentation describes it, in plain loops."""
    extent = x.shape[2:]
    wide = [max(e, roi) for e in extent]
    pads = [((w - e) // 2, w - e - (w - e) // 2) for w, e in zip(wide, extent, strict=True)]
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    step = [roi if e == roi else int(roi * (1 - overlap)) for e in wide]
    counts = [next(d for d in range(e) if d * s + roi >= e) + 1 for e, s in zip(wide, step, strict=True)]
    weights = importance((roi,) * len(extent), blend)
    total, below = None, np.zeros(wide)
    for index in np.ndindex(*counts):
        at = [min(i * s, e - roi) for i, s, e in zip(index, step, wide, strict=True)]
        space = tuple(slice(a, a + roi) for a in at)
        y = expected(model, x[(slice(None), slice(None), *space)])
        total = np.zeros((*y.shape[:2], *wide)) if total is None else total
        total[(slice(None), slice(None), *space)] += y * weights
        below[space] += weights
    assert total is not None
    made: Array = total / below
    return made[(slice(None), slice(None), *(slice(a, a + e) for (a, _), e in zip(pads, extent, strict=True)))]


@pytest.mark.parametrize(("overlap", "blend"), [(0.25, "constant"), (0.5, "gaussian"), (0.0, "gaussian")])
@pytest.mark.parametrize("roi", [16, 26])
def test_windows_are_monais(tmp_path: Path, roi: int, overlap: float, blend: str) -> None:
    """A window larger than one axis is filled with zeros; the instance norm sees one window at a time."""
    volume_network(tmp_path / "m.onnx")
    x = np.random.default_rng(5).standard_normal((1, 1, 22, 40, 31)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    how = f"window={roi},overlap={overlap},blend={blend}"
    assert applied(tmp_path, *["--input", "@x.npy", "--output", "@y.npy", "--budget", "1MiB", "--semantics"], how) == 0
    close(np.load(tmp_path / "y.npy"), sliding(tmp_path / "m.onnx", x, roi, overlap, blend))


@pytest.mark.parametrize(("overlap", "blend"), [(0.25, "constant"), (0.25, "gaussian"), (0.6, "gaussian")])
def test_windows_by_monai_itself(tmp_path: Path, overlap: float, blend: str) -> None:
    torch, inferers = pytest.importorskip("torch"), pytest.importorskip("monai.inferers")
    volume_network(tmp_path / "m.onnx")
    x = np.random.default_rng(5).standard_normal((2, 1, 22, 40, 31)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    how = f"window=26,overlap={overlap},blend={blend}"
    assert applied(tmp_path, *["--input", "@x.npy", "--output", "@y.npy", "--budget", "1MiB", "--semantics"], how) == 0

    def network(windows: Any) -> Any:
        return torch.from_numpy(expected(tmp_path / "m.onnx", windows.numpy()))

    wanted = inferers.sliding_window_inference(torch.from_numpy(x), 26, 1, network, overlap, blend)
    close(np.load(tmp_path / "y.npy"), wanted.numpy())


def test_steps_behind_windows(tmp_path: Path) -> None:
    """What is done to the result is done to what was blended."""
    volume_network(tmp_path / "m.onnx")
    x = np.random.default_rng(6).standard_normal((1, 1, 20, 40, 30)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    files = ["--input", "@x.npy", "--output", "@y.npy", "--semantics", "window=16x24x16", "--post"]
    assert applied(tmp_path, *files, "argmax") == 0
    found = np.load(tmp_path / "y.npy")
    assert found.shape == (1, 1, 20, 40, 30) and found.dtype == np.uint8 and 0 < found.mean() < 1


def test_a_volume_keeps_its_place_in_space(tmp_path: Path) -> None:
    """From .nii to .nii affine and spacing are those of the input."""
    nibabel = pytest.importorskip("nibabel")
    volume_network(tmp_path / "m.onnx")
    x = np.random.default_rng(8).standard_normal((20, 24, 28)).astype(np.float32)
    where = np.array([[0.5, 0, 0, -75], [0, 0.5, 0, -107], [0, 0, 0.5, -69.5], [0, 0, 0, 1]])
    nibabel.save(nibabel.Nifti1Image(x, where), tmp_path / "x.nii")
    assert applied(tmp_path, "--input", "@x.nii", "--output", "@y.nii", "--post", "argmax") == 0
    made = nibabel.load(tmp_path / "y.nii")
    np.testing.assert_allclose(made.affine, where)
    assert made.header.get_zooms()[:3] == (0.5, 0.5, 0.5)


# ---- windows that are computed again


def local_network(path: Path) -> None:
    """Two strides down and up again by fixed factors: a part of the input tells what a part of the result is."""
    rng = np.random.default_rng(3)
    weights = {f"w{i}": rng.standard_normal(shape) * 0.3 for i, shape in enumerate([(6, 3, 3, 3), (6, 6, 3, 3), (2, 6, 3, 3)])}
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1], strides=[2, 2]), node("Relu", "a", "b"),
        node("MaxPool", "b", "c", kernel_shape=[2, 2], strides=[2, 2]), node("Conv", "c w1", "d", pads=[1, 1, 1, 1]),
        node("Resize", "d - scales", "e", mode="linear"), node("Conv", "e w2", "y", pads=[1, 1, 1, 1]),
    ]  # fmt: skip
    arrays = {name: w.astype(np.float32) for name, w in weights.items()} | {"scales": np.array([1, 1, 4, 4], np.float32)}
    onnx.save(onnx_files.model_of(nodes, {"x": ["n", 3, "h", "w"]}, ["y"], arrays), path)


@pytest.mark.parametrize(("post", "whole"), crossed(["", "argmax", "scale 3, cast int16"], [True, False], every=2))
def test_verify(tmp_path: Path, capsys: Any, monkeypatch: Any, post: str, whole: bool) -> None:
    if not whole:
        monkeypatch.setattr(verify, "WHOLE", 0)
    local_network(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(9).integers(0, 255, (2, 3, 208, 176), np.uint8))
    files = ["--input", "@x.npy", "--output", "@y.npy", "--budget", "256KiB", "--pre", "/ 255", "--post", post]
    assert applied(tmp_path, *files, "--verify", "9", "--json") == 0
    told = json.loads(capsys.readouterr().out)["verified"]
    assert told["windows"] == 9
    assert told["difference"] <= (1 if post else 1e-5)
    assert not post or told["difference"] == int(told["difference"])
    assert applied(tmp_path, *files, "--verify", "2", "--overwrite") == 0
    assert "verified  2 windows; largest difference" in capsys.readouterr().out


def test_verify_sees_what_is_wrong(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(verify, "WHOLE", 0)
    right = verify.reference_of

    def wrong(task: Any) -> Any:
        return lambda x: right(task)(x) * 1.01

    monkeypatch.setattr(verify, "reference_of", wrong)
    local_network(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(9).standard_normal((1, 3, 208, 176)).astype("f4"))
    assert applied(tmp_path, "--input", "@x.npy", "--output", "@y.npy", "--verify", "3", "--json") == 0
    assert 0.005 < json.loads(capsys.readouterr().out)["verified"]["difference"] < 0.02


@pytest.mark.parametrize("network", [picture_network, volume_network])
def test_what_a_part_does_not_tell_is_not_verified(tmp_path: Path, capsys: Any, monkeypatch: Any, network: Any) -> None:
    """Global operations: by the whole, where that is small."""
    network(tmp_path / "m.onnx")
    shape = (1, 3, 61, 83) if network is picture_network else (1, 1, 60, 20, 24)
    np.save(tmp_path / "x.npy", np.random.default_rng(9).standard_normal(shape).astype("f4"))
    files = ["--input", "@x.npy", "--output", "@y.npy", "--verify", "4"]
    assert applied(tmp_path, *files) == 0
    assert "verified  4 windows" in capsys.readouterr().out
    monkeypatch.setattr(verify, "WHOLE", 0)
    (tmp_path / "y.npy").unlink()
    assert applied(tmp_path, *files) == 2
    assert not (tmp_path / "y.npy").exists()
    assert "--verify: a result depends on the whole input" in capsys.readouterr().err
    assert applied(tmp_path, *files, "--overwrite", "--pad-to", "32") == 2


def test_other_channels_are_refused_with_a_remedy(tmp_path: Path, capsys: Any) -> None:
    local_network(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.zeros((1, 4, 32, 32), "f4"))
    assert applied(tmp_path, "--input", "@x.npy", "--output", "@y.npy") == 2
    assert (
        "takes 3 channels, got 4 in (1, 4, 32, 32); choose channels of the input first, with ooc apply by --pre"
        in capsys.readouterr().err
    )
    assert applied(tmp_path, "--input", "@x.npy", "--output", "@y.npy", "--pre", "channel 0 1 2, std nine") == 2
    assert "std: expected numbers" in capsys.readouterr().err
    assert applied(tmp_path, "--input", "@x.npy", "--output", "@y.npy", "--pre", "channel 0 1 2, std 2") == 0


# ---- progress


class Halfway:
    """Stands for a session that gets on whenever it is asked, up to nine tenths."""

    def __init__(self) -> None:
        self.asked, self.enough = 0, threading.Event()

    @property
    def progress(self) -> float:
        self.asked += 1
        if self.asked > 200:
            self.enough.set()
        return min(0.95, self.asked / 100)


def test_progress_in_a_log_is_a_line_a_tenth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("ooc.cli.apply.INTERVAL", 0.001)
    session: Any = Halfway()
    with watched(session):
        assert session.enough.wait(HANGS)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["progress", f"{tenth * 10}%"] for tenth in range(1, 10)]
    assert all(line.endswith("s left") for line in lines[1:])
