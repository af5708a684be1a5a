"""Files that are built to hurt: small ones that ask for much, ones that lead elsewhere, ones without an end."""

from __future__ import annotations

import gzip
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from subjects import make_calibration, make_checkpoint, make_zarr, net, numbers, trained

import ooc
from ooc.ir.region import whole

Bomb = Callable[[Path], Callable[[], Any]]  # writes files into a folder, and returns what reads them
HUGE = 1 << 60
CASE = "conv.fprop n=2 c=8 h=30 w=31 k=8 r=3 s=3 pad=1"


# ---- networks in ONNX files


def onnx_of(folder: Path, *nodes: Any, weights: dict[str, Any] | None = None, shape: Any = (1, 3, 16, 16)) -> Path:
    """A file of nodes from x to y."""
    import onnx
    from onnx_files import model_of

    path = folder / "net.onnx"
    onnx.save(model_of(nodes, {"x": shape}, ["y"], weights or {}), path)
    return path


def node(*given: Any, **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(*given, **attributes)


def planned(path: Path, shape: Any = (1, 3, 16, 16)) -> Any:
    return lambda: used(ooc.onnx.load(path, shape))


def used(graph: ooc.Graph) -> Any:
    """What whoever read a graph does with it: any size has a plan, but nothing has room for it."""
    with graph.plan(batch=1, train=False, budget="1 MiB", device="cpu").session() as session:
        return session.forward(np.zeros((1, *graph.shapes[next(iter(graph.inputs))]), np.float32))


def huge_constant(folder: Path) -> Any:
    """A constant of 2^60 values that is not there."""
    import onnx

    path = onnx_of(folder, node("Conv", ["x", "w"], ["y"]), weights={"w": numbers(4, 3, 3, 3)})
    model = onnx.load(path)
    model.graph.initializer[0].dims[0] = HUGE
    onnx.save(model, path)
    return planned(path)


def huge_input(folder: Path) -> Any:
    """An input of 2^60 rows."""
    path = onnx_of(folder, node("Conv", ["x", "w"], ["y"]), weights={"w": numbers(4, 3, 3, 3)}, shape=(1, 3, HUGE, 16))
    return planned(path, None)


def made_by(kind: str, **given: Any) -> Bomb:
    """A constant of 2^60 values that an operator makes."""

    def bomb(folder: Path) -> Any:
        nodes = [node(kind, list(given), ["big"]), node("Add", ["x", "big"], ["y"])]
        return planned(onnx_of(folder, *nodes, weights={name: np.asarray(v) for name, v in given.items()}))

    return bomb


def enlarged(kind: str, *inputs: Any, **attributes: Any) -> Bomb:
    """A tensor that an operator makes 2^40 times as large."""

    def bomb(folder: Path) -> Any:
        weights = {f"c{i}": np.asarray(v) for i, v in enumerate(inputs) if v is not None}
        names = ["x", *(f"c{i}" if v is not None else "" for i, v in enumerate(inputs))]
        return planned(onnx_of(folder, node(kind, names, ["y"], **attributes), weights=weights))

    return bomb


def cycle(folder: Path) -> Any:
    """Two nodes that read each other."""
    return planned(onnx_of(folder, node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Add", ["a", "b"], ["y"])))


def endless(folder: Path) -> Any:
    """A million nodes."""
    import onnx

    path = onnx_of(folder, node("Relu", ["x"], ["t0000000"]), node("Relu", ["t0999999"], ["y"]))
    model, one = onnx.load(path), node("Relu", ["t0000000"], ["t0000001"]).SerializeToString()
    made = (one.replace(b"t0000001", b"t%07d" % (i + 1)).replace(b"t0000000", b"t%07d" % i) for i in range(999_999))
    first, last = (n.SerializeToString() for n in model.graph.node)
    graph = b"".join(b"\x0a" + bytes([len(n)]) + n for n in (first, *made, last))  # field 1 of a graph
    del model.graph.node[:]
    model.graph.MergeFromString(graph)
    path.write_bytes(model.SerializeToString())
    del model
    return planned(path)


def nested(folder: Path) -> Any:
    """Branches in branches, as deep as the format allows."""
    from onnx import helper

    last = inner = helper.make_graph([node("Relu", ["x"], ["z"])], "inner", [], [])
    for _ in range(25):
        inner = helper.make_graph([node("If", ["on"], ["z"], then_branch=inner, else_branch=last)], "outer", [], [])
    return planned(
        onnx_of(folder, node("If", ["on"], ["y"], then_branch=inner, else_branch=inner), weights={"on": np.array(True)})
    )


def outside(location: str, **more: Any) -> Bomb:
    """A constant in a file that is not the model's."""

    def bomb(folder: Path) -> Any:
        import onnx

        path = onnx_of(folder, node("Conv", ["x", "w"], ["y"]), weights={"w": numbers(4, 3, 3, 3)})
        model = onnx.load(path)
        (tensor,) = model.graph.initializer
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": location, **more}.items():
            tensor.external_data.add(key=key, value=str(value))
        onnx.save(model, path)
        (folder / "link.bin").symlink_to("../outside/secret.npy")
        with (folder / "sparse.bin").open("wb") as file:
            file.truncate(1 << 42)
        return planned(path)

    return bomb


# ---- what ooc writes and reads


def graph_text(**changes: Any) -> Bomb:
    """A graph whose first layer has other fields."""

    def bomb(folder: Path) -> Any:
        raw = json.loads(net().to_json())
        raw["layers"][0].update(changes)
        return lambda: used(ooc.Graph.from_json(json.dumps(raw)))

    return bomb


def many_layers(folder: Path) -> Any:
    """A million layers."""
    raw = json.loads(net().to_json())
    one = {"kind": "softmax", "how": "plain"}
    raw["layers"] = [{"name": f"l{i}", "reads": [f"l{i - 1}" if i else "x"], **one} for i in range(1_000_000)]
    text = json.dumps({**raw, "outputs": ["l999999"]})
    return lambda: ooc.Graph.from_json(text)


def deep_text(folder: Path) -> Any:
    """A hundred thousand lists in each other."""
    return lambda: ooc.Plan.from_json("[" * 100_000 + "]" * 100_000)


def cut_into(**changes: Any) -> Bomb:
    """A plan with other fields."""

    def bomb(folder: Path) -> Any:
        raw = json.loads(ooc.plan(CASE, "64 KiB", device="cpu").to_json())
        return lambda: str(ooc.Plan.from_json(json.dumps({**raw, **changes})))

    return bomb


def rates(text: str) -> Bomb:
    """A calibration of which all numbers are this text."""

    def bomb(folder: Path) -> Any:
        import re

        make_calibration(folder)
        path = folder / "device.json"
        path.write_text(re.sub(r": -?[0-9.e+-]+([,\n}])", rf": {text}\1", path.read_text()))
        return lambda: ooc.plan(CASE, "16 KiB", device="cpu", calibration=str(path))

    return bomb


def long_calibration(folder: Path) -> Any:
    """A calibration of 2^40 bytes."""
    with (folder / "device.json").open("wb") as file:
        file.truncate(1 << 40)
    return lambda: ooc.device("cpu", calibration=str(folder / "device.json"))


def checkpoint(change: Callable[[dict[str, bytes]], None], kind: int = zipfile.ZIP_STORED) -> Bomb:
    """A checkpoint whose members were changed."""

    def bomb(folder: Path) -> Any:
        make_checkpoint(folder)
        path = folder / "state.zip"
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        change(members)
        with zipfile.ZipFile(path, "w", kind) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        graph = trained()
        plan = graph.plan(batch=4, device="cpu", optimizer=ooc.SGD(0.1, momentum=0.9))
        return lambda: graph.restore(path, plan)

    return bomb


def pickled(members: dict[str, bytes]) -> None:
    """A member that runs a program where it is unpickled."""
    import io

    class Run:
        def __reduce__(self) -> Any:
            return (open, ("../outside/touched", "w"))

    made = io.BytesIO()
    np.save(made, np.array([Run()], object), allow_pickle=True)
    members[next(n for n in members if n.endswith(".npy"))] = made.getvalue()


def inflated(members: dict[str, bytes]) -> None:
    """A member of 600 MiB that is packed into one."""
    name = next(n for n in members if n.endswith(".npy"))
    members[name] = members[name] + bytes(600 << 20)


def long_about(members: dict[str, bytes]) -> None:
    """A description of 200 MiB."""
    members["about.json"] = b" " * (200 << 20) + members["about.json"]


def journal(content: str) -> Bomb:
    """A journal whose description is another one."""

    def bomb(folder: Path) -> Any:
        (folder / "journal/done").mkdir(parents=True)
        (folder / "journal/call.json").write_text(content)
        y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (2, 4, 12, 12))
        return lambda: ooc.conv(numbers(2, 4, 12, 12), numbers(4, 4, 3, 3), padding=1, out=y, resume=folder / "journal")

    return bomb


# ---- tensors


def npy(header: str) -> Bomb:
    """An array whose header says something else."""

    def bomb(folder: Path) -> Any:
        path, text = folder / "x.npy", header.encode()
        path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + bytes(4096))
        return taken(path)

    return bomb


def taken(path: Path | str) -> Any:
    """All of a tensor."""

    def read() -> Any:
        with ooc.open(path) as source:
            out = np.empty(source.shape, source.dtype)
            source.read(whole(source.shape), out)
            return out

    return read


def zarr(name: str, *where: Any, to: Any) -> Bomb:
    """An array whose metadata say something else at a place."""

    def bomb(folder: Path) -> Any:
        make_zarr(folder)
        path = next(p for p in (folder / name / "zarr.json", folder / name / ".zarray") if p.exists())
        raw = json.loads(path.read_text())
        at = raw
        for key in where[:-1]:
            at = at[key]
        at[where[-1]] = to
        path.write_text(json.dumps(raw))
        return taken(folder / name)

    return bomb


def long_metadata(folder: Path) -> Any:
    """Metadata of 2^40 bytes."""
    make_zarr(folder)
    with (folder / "three.zarr/zarr.json").open("r+b") as file:
        file.truncate(1 << 40)
    return taken(folder / "three.zarr")


def chunk_of(codec: dict[str, Any], content: Callable[[], bytes]) -> Bomb:
    """An array of one chunk, which is this; the content is made only where it is read."""

    def bomb(folder: Path) -> Any:
        import zarr as library

        library.create_array(folder / "x.zarr", shape=(64,), chunks=(64,), dtype="f4", zarr_format=3)
        path = folder / "x.zarr/zarr.json"
        raw = json.loads(path.read_text())
        raw["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}, codec]
        path.write_text(json.dumps(raw))
        (folder / "x.zarr/c").mkdir(exist_ok=True)
        (folder / "x.zarr/c/0").write_bytes(content())
        return taken(folder / "x.zarr")

    return bomb


def zstd_frame(nbytes: int) -> bytes:
    """A frame without its size, of zeros: four bytes for 128 KiB."""
    block = 1 << 17
    count = nbytes // block
    blocks = [((i == count - 1) | 1 << 1 | block << 3).to_bytes(3, "little") + b"\0" for i in range(count)]
    return (0xFD2FB528).to_bytes(4, "little") + bytes([0, 0x38]) + b"".join(blocks)


ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "noshuffle", "typesize": 4, "blocksize": 0},
}

BOMBS: dict[str, Bomb] = {
    "onnx: a constant of 2^60 values": huge_constant,
    "onnx: an input of 2^60 rows": huge_input,
    "onnx: ConstantOfShape 2^60": made_by("ConstantOfShape", c=np.array([HUGE])),
    "onnx: Range to 2^60": made_by("Range", a=np.array(0), b=np.array(HUGE), c=np.array(1)),
    "onnx: Expand to 2^60": made_by("Expand", a=np.ones(1, np.float32), b=np.array([1, 1, HUGE, 1])),
    "onnx: Tile by 2^60": made_by("Tile", a=np.ones((1, 1), np.float32), b=np.array([HUGE, 1])),
    "onnx: Pad by 2^40": enlarged("Pad", np.array([0, 0, 1 << 40, 0, 0, 0, 0, 0])),
    "onnx: Resize by 2^40": enlarged("Resize", None, np.array([1, 1, 2.0**40, 1], np.float32), mode="nearest"),
    "onnx: Reshape to 2^60": enlarged("Reshape", np.array([1, HUGE, 16])),
    "onnx: pads of 2^62": enlarged("Conv", numbers(4, 3, 3, 3), pads=[1 << 62, 0, 0, 0]),
    "onnx: strides of 0": enlarged("Conv", numbers(4, 3, 3, 3), strides=[0, 0]),
    "onnx: 2^60 groups": enlarged("Conv", numbers(4, 3, 3, 3), group=HUGE),
    "onnx: a window of 2^60": enlarged("MaxPool", kernel_shape=[HUGE, HUGE]),
    "onnx: a cycle": cycle,
    "onnx: a million nodes": endless,
    "onnx: branches in branches": nested,
    "onnx: data in ../outside": outside("../outside/secret.npy"),
    "onnx: data in /etc/passwd": outside("/etc/passwd"),
    "onnx: data behind a link": outside("link.bin"),
    "onnx: data of 2^42 bytes": outside("sparse.bin"),
    "onnx: data of a negative length": outside("sparse.bin", length=-1),
    "onnx: data at 2^62": outside("sparse.bin", offset=1 << 62, length=432),
    "onnx: data in a device": outside("/dev/zero"),
    "graph: 2^60 filters": graph_text(k=HUGE),
    "graph: padding of 2^40": graph_text(pad=[[1 << 40, 0], [0, 0]]),
    "graph: taps of 2^60": graph_text(taps=[HUGE, HUGE]),
    "graph: a million layers": many_layers,
    "graph: 2^40 channels, in tiles of a budget": graph_text(k=1 << 40),
    "plan: nested lists": deep_text,
    "plan: a depth of 0": cut_into(depth=0),
    "plan: workspace of 2^63": cut_into(workspace_bytes=1 << 63),
    "plan: a tile of nothing": cut_into(tile=[["n", 0]]),
    "calibration: NaN": rates("NaN"),
    "calibration: Infinity": rates("Infinity"),
    "calibration: 1e999": rates("1e999"),
    "calibration: -1": rates("-1"),
    "calibration: 2^40 bytes": long_calibration,
    "checkpoint: a pickle": checkpoint(pickled),
    "checkpoint: 600 MiB in one": checkpoint(inflated, zipfile.ZIP_DEFLATED),
    "checkpoint: a description of 200 MiB": checkpoint(long_about, zipfile.ZIP_DEFLATED),
    "journal: nested lists": journal("[" * 100_000),
    "journal: a number": journal("1"),
    "journal: another call": journal("{}"),
    "npy: 2^60 rows": npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({HUGE},), }}"),
    "npy: objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (4,), }"),
    "npy: -1 rows": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"),
    "npy: a program": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (__import__('os').getpid(),), }"),
    "npy: nested parentheses": npy("(" * 9000),
    "zarr: chunks of 2^60": zarr("three.zarr", "chunk_grid", "configuration", "chunk_shape", to=[HUGE, 1, 1]),
    "zarr: a shape of 2^60": zarr("two.zarr", "shape", to=[HUGE, 20, 30]),
    "zarr: chunks of 0": zarr("two.zarr", "chunks", to=[0, 8, 8]),
    "zarr: shards of 2^60": zarr("shards.zarr", "chunk_grid", "configuration", "chunk_shape", to=[3, 1 << 30, 1 << 30]),
    "zarr: objects": zarr("two.zarr", "dtype", to="|O"),
    "zarr: metadata of 2^40 bytes": long_metadata,
    "zarr: gzip of 1 GiB": chunk_of(GZIP, lambda: gzip.compress(bytes(1 << 30), 1)),
    "zarr: zstd of 64 GiB": chunk_of(ZSTD, lambda: zstd_frame(1 << 36)),
    "zarr: blosc of 2 GiB": chunk_of(
        BLOSC, lambda: b"\x02\x01\x21\x04" + struct.pack("<III", (1 << 31) - 1, 1 << 16, 64) + bytes(48)
    ),
    "zarr: blosc beyond its end": chunk_of(
        BLOSC, lambda: b"\x02\x01\x21\x04" + struct.pack("<III", 256, 256, 1 << 30) + bytes(48)
    ),
}
