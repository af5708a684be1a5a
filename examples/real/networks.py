"""Real trained networks as ONNX files, of any size of picture: built from their weights with the onnx package alone.

python examples/real/networks.py [--data FOLDER] [NAME ...]     (default: all whose weights fetch.py has put there)
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import helper, numpy_helper

DATA = Path(__file__).parent / "data"
OPSET = 18
Array = np.ndarray[Any, Any]
Weights = dict[str, Array]


class Writer:
    """An ONNX network that grows node by node. Its input is x, 1 x channels x spatial, of any size; its output is y.

    Parameters:
        name: of the network.
        channels: of x.
        rank: how many spatial axes there are.
        weights: filters as k x c x taps and biases, by names that end in .weight and .bias.
    """

    def __init__(self, name: str, channels: int, rank: int, weights: Weights) -> None:
        self.name, self.channels, self.rank, self.weights = name, channels, rank, weights
        self.nodes: list[Any] = []
        self.used: Weights = {}

    def node(self, kind: str, *reads: str, made: str = "", **attributes: Any) -> str:
        """One more node; the name of what it makes."""
        made = made or f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(reads), [made], name=f"node.{made}", **attributes))
        return made

    def conv(self, x: str, name: str, made: str = "") -> str:
        """A convolution with the weights of `name`, of stride 1, padded so that the size stays."""
        for part in (".weight", ".bias"):
            self.used[name + part] = np.ascontiguousarray(self.weights[name + part], np.float32)
        taps = self.used[name + ".weight"].shape[2:]
        pads = [*((t - 1) // 2 for t in taps), *(t // 2 for t in taps)]
        return self.node("Conv", x, name + ".weight", name + ".bias", made=made, kernel_shape=taps, pads=pads)

    def halve(self, x: str, ceil: bool = False) -> str:
        """The largest of every two positions along each axis; ceil: of what is left over at the end, too."""
        two = [2] * self.rank
        return self.node("MaxPool", x, kernel_shape=two, strides=two, ceil_mode=int(ceil))

    def resize(self, x: str, like: str, **how: Any) -> str:
        """x at the spatial size of another tensor."""
        size = self.node("Shape", like, start=2)
        return self.node("Resize", x, "", "", size, axes=list(range(2, 2 + self.rank)), **how)

    def save(self, path: Path) -> None:
        """Write the file, once it is known to be sound."""
        shape: list[str | int | None] = [1, self.channels, *("depth", "height", "width")[-self.rank :]]
        graph = helper.make_graph(
            self.nodes, self.name,
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, *[None] * (1 + self.rank)])],
            [numpy_helper.from_array(value, name) for name, value in self.used.items()],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        part = path.with_suffix(".part")
        part.write_bytes(model.SerializeToString())
        part.replace(path)


# ---- HED, edges: the body of VGG16, and a side output of each of its five blocks

BLOCKS = (2, 2, 3, 3, 3)  # convolutions of each


def hed(data: Path) -> None:
    """Edges from 0 to 1 of a picture in BGR less `BGR_MEAN`, from hed.h5."""
    writer = Writer("hed", 3, 2, _of_keras(data / "hed.h5"))
    h, sides = "x", []
    for b, count in enumerate(BLOCKS, 1):
        h = writer.halve(h, ceil=True) if b > 1 else h
        for i in range(count):
            h = writer.node("Relu", writer.conv(h, f"block{b}.{i}"))
        side = writer.conv(h, f"dsn{b}")
        how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
        sides.append(writer.resize(side, "x", **how) if b > 1 else side)
    writer.node("Sigmoid", writer.conv(writer.node("Concat", *sides, axis=1), "fuse"), made="y")
    writer.save(data / "hed.onnx")


BGR_MEAN = (104.00699, 116.66877, 122.67892)


def _of_keras(path: Path) -> Weights:
    """The weights of HED by the names that `hed` has for them."""
    import h5py  # type: ignore[import-untyped]

    names = {f"dsn{b}": f"dsn{b}" for b in range(1, 6)} | {"fuse": "fuse"}
    for b, count in enumerate(BLOCKS, 1):
        names |= {f"block{b}.{i}": f"block{b}/layers/conv2d" + (f"_{i}" if i else "") for i in range(count)}
    found: Weights = {}
    with h5py.File(path, "r") as file:
        for name, group in names.items():
            found[name + ".weight"] = np.transpose(file[f"{group}/vars/0"][...], (3, 2, 0, 1))
            found[name + ".bias"] = file[f"{group}/vars/1"][...]
    return found


# ---- Topaz, denoising of micrographs and tomograms: U-Nets of depth five


def topaz2d(data: Path) -> None:
    """A micrograph without its noise, both with mean 0 and deviation 1, from topaz2d.sav."""
    _topaz(data, "topaz2d", 2)


def topaz3d(data: Path) -> None:
    """A tomogram without its noise, both with mean 0 and deviation 1, from topaz3d.sav."""
    _topaz(data, "topaz3d", 3)


def _topaz(data: Path, name: str, rank: int) -> None:
    writer = Writer(name, 1, rank, of_torch(data / f"{name}.sav"))

    def conv(x: str, layer: str) -> str:
        return writer.node("LeakyRelu", writer.conv(x, layer), alpha=0.1)

    skips = ["x"]
    for level in range(1, 6):
        skips.append(writer.halve(conv(skips[-1], f"enc{level}.0")))
    h = conv(skips.pop(), "enc6.0")
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for level in range(5, 0, -1):
        skip = skips.pop()
        h = writer.node("Concat", writer.resize(h, skip, **nearest), skip, axis=1)
        h = conv(conv(h, f"dec{level}.0"), f"dec{level}.2")
    writer.conv(h, "dec1.4", made="y")
    writer.save(data / f"{name}.onnx")


class _Tensors(pickle.Unpickler):
    """Reads the pickle of a state dict: no name but the three that it needs is looked up, and none of them is PyTorch's code."""

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "FloatStorage"): np.float32,
            ("torch._utils", "_rebuild_tensor_v2"): lambda key, offset, size, stride, *_: (key, offset, size, stride),
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"{module}.{name} is in the file, which should hold numbers alone")
        return known[module, name]

    def persistent_load(self, pid: Any) -> str:
        return str(pid[2])  # ("storage", type, key, location, count, view)


def of_torch(path: Path) -> Weights:
    """The tensors of a state dict in the format that PyTorch wrote before 1.6: pickles, then the numbers of each storage."""
    with path.open("rb") as file:
        for _ in range(3):  # a magic number, a version, the machine that wrote it
            _Tensors(file).load()
        tensors, keys = _Tensors(file).load(), _Tensors(file).load()
        stored = {key: _storage(file) for key in keys}
    found: Weights = {}
    for name, (key, offset, size, stride) in tensors.items():
        strides = [4 * s for s in stride]
        found[name] = np.lib.stride_tricks.as_strided(stored[key][offset:], size, strides).copy()
    return found


def _storage(file: BinaryIO) -> Array:
    count = int.from_bytes(file.read(8), "little")
    return np.frombuffer(file.read(4 * count), "<f4")


# ---- ESRGAN slim, a picture four times as large: Keras layers as TensorFlow.js has them


def esrgan(data: Path) -> None:
    """RGB from 0 to 255, four times as high and wide, from esrgan.json and esrgan.bin."""
    spec = json.loads((data / "esrgan.json").read_text())
    config = spec["modelTopology"]["model_config"]["config"]
    writer = Writer("esrgan", 3, 2, _of_tfjs(spec, data / "esrgan.bin"))
    last = config["output_layers"][0][0]
    named = {config["input_layers"][0][0]: "x"}
    for layer in config["layers"]:
        if layer["class_name"] != "InputLayer":
            reads = [named[one[0]] for one in layer["inbound_nodes"][0]]
            name = layer["config"]["name"]
            named[name] = _keras(writer, layer["class_name"], layer["config"], reads, "y" if name == last else name)
    writer.save(data / "esrgan.onnx")


def _keras(writer: Writer, kind: str, config: dict[str, Any], reads: list[str], made: str) -> str:
    """One layer of Keras, of the kinds and with the options that ESRGAN slim has."""
    if kind == "Conv2D" and config["strides"] == [1, 1] and config["activation"] == "linear":
        return writer.conv(reads[0], config["name"], made)
    if kind == "Activation" and config["activation"] == "relu":
        return writer.node("Relu", *reads, made=made)
    if kind == "Concatenate":
        return writer.node("Concat", *reads, made=made, axis=1)
    if kind == "Add":
        return writer.node("Add", *reads, made=made)
    if kind == "UpSampling2D" and config["interpolation"] == "nearest":
        scales = f"{made}.scales"
        writer.used[scales] = np.array([1, 1, *config["size"]], np.float32)
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return writer.node("Resize", *reads, "", scales, made=made, mode="nearest", **how)
    raise ValueError(f"layer {config['name']}: {kind} of this kind is not in ESRGAN slim")


def _of_tfjs(spec: dict[str, Any], path: Path) -> Weights:
    """The numbers of the shard, one tensor after the other."""
    values, at = np.fromfile(path, "<f4"), 0
    found: Weights = {}
    for one in (w for group in spec["weightsManifest"] for w in group["weights"]):
        count = int(np.prod(one["shape"]))
        value = values[at : at + count].reshape(one["shape"])
        at += count
        name, part = one["name"].rsplit("/", 1)
        found[f"{name}.bias" if part == "bias" else f"{name}.weight"] = value if value.ndim == 1 else value.transpose(3, 2, 0, 1)
    if at != values.size:
        raise ValueError(f"{path.name}: {values.size} numbers, {at} in the list of weights")
    return found


BUILDERS: dict[str, Callable[[Path], None]] = {"hed": hed, "topaz2d": topaz2d, "topaz3d": topaz3d, "esrgan": esrgan}
READS = {"hed": ("hed.h5",), "topaz2d": ("topaz2d.sav",), "topaz3d": ("topaz3d.sav",), "esrgan": ("esrgan.json", "esrgan.bin")}


def main(arguments: list[str]) -> int:
    """Build what was asked for; the exit status."""
    parser = argparse.ArgumentParser(description="Real trained networks as ONNX files.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BUILDERS)}; default: all that fetch.py got")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of fetch.py")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.names) - set(BUILDERS)):
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(BUILDERS)}")
    for name in asked.names or [n for n in BUILDERS if all((asked.data / f).exists() for f in READS[n])]:
        BUILDERS[name](asked.data)
        print(f"{name}: {asked.data / name}.onnx")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
