"""What ooc reads from disk: files that are right, and how they are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "helpers"))

import ooc
from ooc.ir.region import Span, whole

Array = np.ndarray[Any, Any]
SMALL = 0.5  # predicted seconds of a network that is run, too
READ = 1 << 18  # elements of a file that are read


@dataclass(frozen=True)
class Subject:
    """Files of a kind.

    make: writes them into a folder. read: reads them as a user's program does; raises OocError where they are not right.
    changes: the pattern of files that are changed. share: how often they are looked at, beside others.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    changes: str = "**/*"
    share: int = 1


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    """Small integers that differ from place to place."""
    return (np.arange(np.prod(shape, dtype=np.int64)).reshape(shape) % 7 - 3).astype(dtype)


# ---- networks


def net(g: ooc.Graph | None = None) -> ooc.Graph:
    """A network with most kinds of layers."""
    g = g or ooc.Graph("net")
    x = g.input("x", (3, 16, 16))
    a = g.conv(x, 4, 3, padding=1, bias=True, activation="relu", name="first")
    b = g.pool(g.batch_norm(a), 2)
    c = g.upsample(g.conv(b, 4, 3, padding=1), factor=2)
    d = g.concat(a, c)
    g.output(g.conv(g.instance_norm(d), 2, 1, name="last"))
    return g


def trained() -> ooc.Graph:
    """A network with a loss."""
    g = ooc.Graph("trained")
    h = g.pool(g.conv(g.input("x", (2, 8, 8)), 4, 3, padding=1, bias=True, activation="relu"), 2)
    g.loss("cross_entropy", g.linear(g.flatten(h), 3, bias=True))
    return g


def run(plan: ooc.NetworkPlan) -> Any:
    """Its results, where that does not take long."""
    str(plan)
    held = sum(t.nbytes for t in plan.network.tensors.values())
    if plan.predicted_seconds > SMALL or held > READ * 64:
        return None
    with plan.session() as session:
        given = {name: numbers(plan.batch, *shape) for name, shape in plan.graph.inputs.items()}
        return session.forward(given if len(given) > 1 else next(iter(given.values())))


def make_onnx(folder: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnx_files import model_of

    node = helper.make_node
    weights = {"w": numbers(4, 3, 3, 3), "b": numbers(4), "v": numbers(4, 4, 3, 3), "s": np.ones(4, np.float32)}
    first = [
        node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["r"]),
        node("BatchNormalization", ["r", "s", "b", "b", "s"], ["n"]),
        node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "v"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Sigmoid", ["c"], ["sg"]),
        node("ConvTranspose", ["sg", "v"], ["t"], strides=[2, 2], kernel_shape=[3, 3], output_padding=[1, 1], pads=[1, 1, 1, 1]),
        node("Add", ["t", "p"], ["y"]),
    ]
    onnx.save(model_of(first, {"x": ("n", 3, "h", "w")}, ["y"], weights), folder / "first.onnx")
    sizes = {
        "up": np.array([1, 1, 2, 2], np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 2, 2]),
        "k": np.array([0]),
        "e": np.array([12]),
        "ax": np.array([2]),
        "new": np.array([0, -1]),
        "m": numbers(5, 3),
        "half": np.array([1, 2]),
    }
    second = [
        node("Pad", ["x", "pads"], ["a"], mode="reflect"),
        node("Slice", ["a", "k", "e", "ax"], ["b"]),
        node("Resize", ["b", "", "up"], ["c"], mode="linear", coordinate_transformation_mode="half_pixel"),
        node("Split", ["c", "half"], ["d", "f"], axis=1),
        node("Concat", ["f", "d"], ["g"], axis=1),
        node("Shape", ["g"], ["sh"]),
        node("Gather", ["sh", "k"], ["n"], axis=0),
        node("ReduceMean", ["g"], ["q"], axes=[2, 3], keepdims=1),
        node("Mul", ["g", "q"], ["h"]),
        node("GlobalAveragePool", ["h"], ["i"]),
        node("Reshape", ["i", "new"], ["j"]),
        node("Gemm", ["j", "m"], ["l"], transB=1),
        node("Softmax", ["l"], ["y"], axis=1),
    ]
    onnx.save(model_of(second, {"x": ("n", 3, "h", "w")}, ["y"], sizes, opset=17), folder / "second.onnx")
    apart = model_of([node("Conv", ["x", "w"], ["y"])], {"x": (1, 3, 16, 16)}, ["y"], {"w": weights["w"]})
    onnx.external_data_helper.convert_model_to_external_data(apart, location="weights.bin", size_threshold=0)
    onnx.save(apart, folder / "apart.onnx")
    inner = helper.make_graph(
        [node("Relu", ["x"], ["z"])], "then", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    )
    cond = numpy_helper.from_array(np.array(True), "t")
    branch = [node("Constant", [], ["on"], value=cond), node("If", ["on"], ["y"], then_branch=inner, else_branch=inner)]
    onnx.save(model_of(branch, {"x": (1, 3, 16, 16)}, ["y"], {}), folder / "branch.onnx")


def read_onnx(folder: Path) -> None:
    for path in sorted(folder.glob("*.onnx")):
        try:
            run(ooc.onnx.load(path, (1, 3, 16, 16)).plan(batch=1, train=False, budget="1 MiB", device="cpu"))
        except ooc.UnsupportedError:
            if path.name != "branch.onnx":
                raise


def make_graph(folder: Path) -> None:
    (folder / "graph.json").write_text(net().to_json())


def read_graph(folder: Path) -> None:
    graph = ooc.Graph.from_json(folder / "graph.json")
    str(graph)
    run(graph.plan(batch=1, train=False, budget="64 KiB", device="cpu"))


def make_plans(folder: Path) -> None:
    case = "conv.fprop n=2 c=8 h=30 w=31 k=8 r=3 s=3 pad=1 | pool.max n=2 k=8 h=30 w=31 window=2"
    (folder / "call.json").write_text(ooc.plan(case, "64 KiB", device="cpu").to_json())
    (folder / "infer.json").write_text(net().plan(batch=1, train=False, budget="24 KiB", device="cpu").to_json())
    plan = trained().plan(batch=4, budget="16 KiB", device="cpu", policy="auto", optimizer=ooc.SGD(0.1))
    (folder / "train.json").write_text(plan.to_json())


def text(path: Path) -> str:
    """A file as text, whatever it holds."""
    return path.read_bytes().decode(errors="replace")


def read_plans(folder: Path) -> None:
    plan = ooc.Plan.from_json(text(folder / "call.json"))
    str(plan), plan.to_json()
    run(ooc.NetworkPlan.from_json(text(folder / "infer.json"), "cpu"))
    plan = ooc.NetworkPlan.from_json(text(folder / "train.json"), "cpu")
    if plan.predicted_seconds < SMALL:
        with plan.session() as session:
            session.step(numbers(plan.batch, 2, 8, 8), np.arange(plan.batch) % 3)


# ---- what ooc keeps


def make_calibration(folder: Path) -> None:
    from ooc.model.calibration import DEVICES

    (folder / "device.json").write_bytes((DEVICES / "cpu.json").read_bytes())


def read_calibration(folder: Path) -> None:
    case, own = "conv.fprop n=2 c=8 h=30 w=31 k=8 r=3 s=3 pad=1", str(folder / "device.json")
    str(ooc.plan(case, "16 KiB", device="cpu", calibration=own))
    with ooc.device("cpu", "32 KiB", calibration=own):
        run(net().plan(batch=1, train=False))


def make_checkpoint(folder: Path) -> None:
    with trained().plan(batch=4, device="cpu", optimizer=ooc.SGD(0.1, momentum=0.9)).session() as session:
        session.step(numbers(4, 2, 8, 8), np.arange(4) % 3)
        session.save(folder / "state.zip")


def read_checkpoint(folder: Path) -> None:
    graph = trained()
    plan = graph.plan(batch=4, device="cpu", optimizer=ooc.SGD(0.1, momentum=0.9))
    with graph.restore(folder / "state.zip", plan) as session:
        session.step(numbers(4, 2, 8, 8), np.arange(4) % 3)


def make_call(folder: Path) -> None:
    x, y = (
        np.lib.format.open_memmap(folder / n, "w+", np.float32, s)
        for n, s in (("x.npy", (2, 4, 12, 12)), ("y.npy", (2, 4, 12, 12)))
    )
    x[...] = numbers(2, 4, 12, 12)
    x.flush()
    convolve(folder, y)
    for path in sorted((folder / "journal/done").iterdir())[::2]:
        path.unlink()


def convolve(folder: Path, y: Array | None = None) -> Array:
    """The convolution of an example, which goes on."""
    x = np.load(folder / "x.npy", mmap_mode="r")
    y = np.load(folder / "y.npy", mmap_mode="r+") if y is None else y
    with ooc.device("cpu", budget="4 KiB"):
        return ooc.conv(x, numbers(4, 4, 3, 3), padding=1, out=y, resume=folder / "journal")


def read_call(folder: Path) -> None:
    found = convolve(folder)
    wanted = ooc.conv(numbers(2, 4, 12, 12), numbers(4, 4, 3, 3), padding=1)
    assert np.array_equal(found, wanted), "another result"


def work_plan() -> ooc.NetworkPlan:
    return net().plan(batch=1, train=False, budget="24 KiB", device="cpu")


def make_work(folder: Path) -> None:
    np.save(folder / "x.npy", numbers(1, 3, 16, 16))
    tasks = ooc.tasks(work_plan(), folder / "x.npy", folder / "y.npy", folder=folder / "work")
    for task in tasks[: len(tasks) // 2]:
        task()


def read_work(folder: Path) -> None:
    tasks = ooc.tasks(work_plan(), folder / "x.npy", folder / "y.npy", folder=folder / "work", resume=True)
    ooc.run_tasks(tasks)


def trains(folder: Path, resume: bool) -> None:
    """A training by parts, one step further."""
    plan = trained().plan(batch=4, device="cpu", optimizer=ooc.SGD(0.1, momentum=0.9))
    with ooc.Training(plan, folder / "run", parts=2, resume=resume) as training:
        training.step(numbers(4, 2, 8, 8), np.arange(4) % 3)


def make_training(folder: Path) -> None:
    trains(folder, False)


def read_training(folder: Path) -> None:
    trains(folder, True)


# ---- tensors


def make_npy(folder: Path) -> None:
    np.save(folder / "x.npy", numbers(3, 20, 30))


def make_zarr(folder: Path) -> None:
    import zarr

    x = numbers(3, 20, 30)
    for name, version, how in (("two", 2, {}), ("three", 3, {}), ("shards", 3, {"shards": (3, 16, 16)})):
        made = zarr.create_array(
            folder / f"{name}.zarr", shape=x.shape, chunks=(3, 8, 8), dtype=x.dtype, zarr_format=version, **how
        )
        made[...] = x
    group = zarr.open_group(folder / "image.ome.zarr", mode="w", zarr_format=2)
    group.create_array("0", shape=x.shape, chunks=(3, 8, 8), dtype=x.dtype)[...] = x
    axes = [{"name": n, "type": t} for n, t in (("c", "channel"), ("y", "space"), ("x", "space"))]
    scale = [{"type": "scale", "scale": [1, 1, 1]}]
    level = {"path": "0", "coordinateTransformations": scale}
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": [level]}]


def make_others(folder: Path) -> None:
    import gzip

    import h5py
    import tifffile

    x = numbers(3, 20, 30)
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("data", data=x, chunks=(1, 10, 10), compression="gzip")
    tifffile.imwrite(folder / "x.tif", x, tile=(16, 16), photometric="minisblack", compression="zlib")
    tifffile.imwrite(folder / "plain.tif", x.astype(np.uint8), photometric="minisblack")
    with ooc.create(folder / "x.nii", x.shape, x.dtype) as made:
        made.write(whole(x.shape), x)
    (folder / "y.nii.gz").write_bytes(gzip.compress((folder / "x.nii").read_bytes()))
    with ooc.create(folder / "x.png", (20, 30), np.uint8) as made:
        made.write(whole((20, 30)), numbers(20, 30, dtype=np.uint8) & 7)


def read_tensors(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        with ooc.open(path) as source:
            source.own(tuple(Span(0, min(1, e)) for e in source.shape))
            for region in (tuple(Span(0, min(6, e)) for e in source.shape), tuple(Span(max(0, e - 6), e) for e in source.shape)):
                source.read(region, np.empty([hi - lo for lo, hi in region], source.dtype))


def make_recipe(folder: Path) -> None:
    found = {"tile": "conv n=1", "choices": [[1e-3, 1, 0, 1024], [2e-3, 6, 1, 0]]}
    (folder / "cudnn-null.jsonl").write_text("\n".join([json.dumps(found)] * 3))


def read_tuning(folder: Path) -> None:
    import os
    import warnings

    from ooc.backends.cuda.tuning import Measurements

    os.environ["OOC_CACHE"] = str(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lines that are none are told, and passed over
        known = Measurements({"gpu": "null"})
    known.best("conv n=1", 1 << 20)


SUBJECTS = {
    "onnx": Subject(make_onnx, read_onnx, "*", 5),
    "graph": Subject(make_graph, read_graph, share=2),
    "plan": Subject(make_plans, read_plans, share=3),
    "calibration": Subject(make_calibration, read_calibration),
    "checkpoint": Subject(make_checkpoint, read_checkpoint, share=2),
    "journal": Subject(make_call, read_call, "journal/**/*", 2),
    "work": Subject(make_work, read_work, "work/**/*", 2),
    "training": Subject(make_training, read_training, "run/**/*"),
    "tuning": Subject(make_recipe, read_tuning),
    "npy": Subject(make_npy, read_tensors, share=2),
    "zarr": Subject(make_zarr, read_tensors, share=4),
    "others": Subject(make_others, read_tensors, share=2),
}
