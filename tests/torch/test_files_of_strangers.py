"""Programs of torch.export that run code while PyTorch reads them are refused before it does."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from ooc.cli.main import main  # noqa: E402
from ooc.errors import StoreError  # noqa: E402
from ooc.torch.files import Pt2Program  # noqa: E402

Members = dict[str, bytes]
MODEL, SAMPLES, WEIGHTS = "models/model.json", "data/sample_inputs/model.pt", "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Runs:
    """A pickle that runs a command."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


class Net(nn.Module):
    """With sizes that are computed, a string among its arguments, and perhaps a constant."""

    def __init__(self, constant: bool = False) -> None:
        super().__init__()
        self.conv, scale = nn.Conv2d(3, 4, 3, padding=1), torch.full((4, 1, 1), 0.5)
        if constant:
            self.scale = scale
        else:
            self.register_buffer("scale", scale)

    def forward(self, x: Any) -> Any:
        y = self.conv(x) * self.scale
        z = nn.functional.interpolate(nn.functional.max_pool2d(y, 2), size=x.shape[2:], mode="bilinear")
        return torch.relu(y + z)


def network(constant: bool = False) -> Any:
    torch.manual_seed(0)
    return Net(constant).eval()


def saved(path: Path, constant: bool = False, **options: Any) -> Path:
    torch.export.save(torch.export.export(network(constant), (torch.zeros(1, 3, 16, 16),), **options), path)
    return path


def even() -> Any:
    dim = torch.export.Dim
    return ({2: 2 * dim("h", min=4, max=4096), 3: 2 * dim("w", min=4, max=4096)},)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """The members of a sound archive."""
    path = saved(tmp_path_factory.mktemp("sound") / "net.pt2", True, dynamic_shapes=even())
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def pickled(mark: str) -> bytes:
    buffer = io.BytesIO()
    torch.save((Runs(mark), {}), buffer)
    return buffer.getvalue()


def changed(members: Members, name: str, change: Callable[[Any], Any]) -> None:
    told = json.loads(members[name])
    change(told)
    members[name] = json.dumps(told).encode()


def instead(members: Members, old: str, new: str) -> None:
    text = members[MODEL].decode()
    assert old in text
    members[MODEL] = text.replace(old, new).encode()


def samples(members: Members, mark: str) -> None:
    members[SAMPLES] = pickled(mark)


def payload(config: str, prefix: str) -> Callable[[Members, str], None]:
    def change(members: Members, mark: str) -> None:
        def use(told: Any) -> None:
            name = next(iter(told["config"]))
            told["config"][name] |= {"path_name": f"{prefix}_7", "use_pickle": True}

        changed(members, config, use)
        held = pickle.dumps(Runs(mark)) if prefix.startswith("opaque") else pickled(mark)
        members[f"{config.rpartition('/')[0]}/{prefix}_7"] = held

    return change


def old_weights(members: Members, mark: str) -> None:
    members["data/weights/model.pt"] = pickled(mark)


def old_constants(members: Members, mark: str) -> None:
    members["data/constants/model.pt"] = pickled(mark)


def another_program(members: Members, mark: str) -> None:
    """Beside the one that is wanted: all are read."""
    for name in (MODEL, WEIGHTS, CONSTANTS):
        members[name.replace("model.json", "other.json").replace("model_", "other_")] = members[name]
    members[SAMPLES.replace("model.pt", "other.pt")] = pickled(mark)


def expression(members: Members, mark: str) -> None:
    """Sizes are evaluated."""
    instead(members, "positive=True", f"positive=__import__('os').system('touch {mark}')")


def nested_expression(members: Members, mark: str) -> None:
    code = f"__import__('os').system('touch {mark}')".replace("'", "\\\\x27")
    instead(members, "Integer(2)", f"Max(2, '{code}')")


def guard(members: Members, mark: str) -> None:
    """Conditions on sizes are Python code, which is run with the network."""
    changed(members, MODEL, lambda told: told["guards_code"].append(f"__import__('os').system('touch {mark}') == 0"))


def target(members: Members, mark: str) -> None:
    """What a node calls is looked up in the module `torch`, which imports os."""

    def use(told: Any) -> None:
        node = next(n for n in told["graph_module"]["graph"]["nodes"] if "relu" in n["target"])
        node |= {"target": "torch.os.system", "inputs": [{"name": "", "arg": {"as_string": f"touch {mark}"}, "kind": 1}]}

    changed(members, MODEL, use)


def library(members: Members, mark: str) -> None:
    """Loads a library of the system's choice."""
    instead(members, "torch.ops.aten.relu.default", "torch.ops.load_library")


def name_of_an_input(members: Members, mark: str) -> None:
    """Names go into code that is run."""
    instead(members, '"x"', f"\"x=__import__('os').system('touch {mark}')\"")


def compiled(members: Members, mark: str) -> None:
    """A library that was compiled ahead is opened."""
    members["data/aotinductor/model/model.so"] = b"\x7fELF"
    members["data/aotinductor/model/model_metadata.json"] = b"{}"


def old_format(which: str) -> Callable[[Members, str], None]:
    """What PyTorch before 2.8 wrote."""

    def change(members: Members, mark: str) -> None:
        held = {"serialized_exported_program.json": members[MODEL], "version": b"8.8"}
        empty = io.BytesIO()
        torch.save({}, empty)
        for name in ("state_dict", "constants", "example_inputs"):
            held[f"serialized_{name}.pt"] = pickled(mark) if name == which else empty.getvalue()
        members.clear()
        members.update({f"/{name}": value for name, value in held.items()})

    return change


EVIL: dict[str, Callable[[Members, str], None]] = {
    "sample inputs": samples, "a weight": payload(WEIGHTS, "weight"), "a constant": payload(CONSTANTS, "tensor"),
    "an object": payload(CONSTANTS, "opaque_obj"), "an object of C++": payload(CONSTANTS, "custom_obj"),
    "a state of old": old_weights, "constants of old": old_constants, "another program": another_program,
    "an expression": expression, "a text in an expression": nested_expression, "a guard": guard, "a target": target,
    "a library": library, "a name": name_of_an_input, "compiled": compiled,
    "old state": old_format("state_dict"), "old constants": old_format("constants"), "old inputs": old_format("example_inputs"),
}  # fmt: skip


def written(path: Path, members: Members, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, held in members.items():
            archive.writestr(name[1:] if name.startswith("/") else f"net/{name}", held)
    return path


def applied(model: Path, *more: str) -> int:
    np.save(model.with_name("x.npy"), np.random.default_rng(0).standard_normal((1, 3, 20, 24)).astype("f4"))
    files = ["--input", str(model.with_name("x.npy")), "--output", str(model.with_name("y.npy"))]
    return main(["apply", str(model), *files, *more])


@pytest.mark.parametrize("kind", EVIL)
@pytest.mark.parametrize("more", [["--plan"], ["--verify", "1"]], ids=["plan", "verify"])
def test_nothing_of_a_strangers_runs(
    kind: str, more: list[str], sound: Members, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members, mark = dict(sound), tmp_path / "ran"
    EVIL[kind](members, str(mark))
    assert applied(written(tmp_path / "net.pt2", members), *more) == 2
    error = capsys.readouterr().err
    assert not mark.exists() and not (tmp_path / "y.npy").exists()
    assert len(error.strip().splitlines()) == 1 and "net.pt2" in error and "--trust" in error


@pytest.mark.parametrize("kind", ["sample inputs", "an expression", "a constant"])
def test_it_runs_for_who_trusts_it(kind: str, sound: Members, tmp_path: Path) -> None:
    """What is refused above does run."""
    members, mark = dict(sound), tmp_path / "ran"
    EVIL[kind](members, str(mark))
    applied(written(tmp_path / "net.pt2", members), "--plan", "--trust")
    assert mark.exists()


def test_archives_that_unpack_to_more(sound: Members, tmp_path: Path) -> None:
    packed = written(tmp_path / "packed.pt2", sound | {"data/weights/weight_9": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(StoreError, match="compressed"):
        Pt2Program(packed)
    twice = written(tmp_path / "twice.pt2", sound)
    with zipfile.ZipFile(twice, "a") as archive:
        archive.writestr(f"NET/{SAMPLES}", b"")
    with pytest.raises(StoreError, match="twice"):
        Pt2Program(twice)


def test_ordinary_ones_open(tmp_path: Path) -> None:
    dim = torch.export.Dim
    shapes: list[Any] = [None, even(), ({2: dim.AUTO, 3: dim.AUTO},), (even()[0] | {0: dim.AUTO},)]
    for i, dynamic in enumerate(shapes):
        path = saved(tmp_path / f"{i}.pt2", dynamic_shapes=dynamic)
        assert Pt2Program(path).rank == 2 and applied(path, "--plan") == (0 if dynamic else 2)
    assert Pt2Program(saved(tmp_path / "constant.pt2", True, dynamic_shapes=even())).rank == 2
    program = torch.export.export(network(), (), {"x": torch.zeros(1, 3, 16, 16)})
    torch.export.save(program, tmp_path / "keywords.pt2", extra_files={"notes.txt": "(anything) = 'here';"})
    assert Pt2Program(tmp_path / "keywords.pt2").rank == 2


def test_the_result_is_that_of_the_program(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.pt2", dynamic_shapes=even())
    assert applied(path, "--verify", "1") == 0
    with torch.no_grad():
        wanted = network()(torch.from_numpy(np.load(tmp_path / "x.npy")))
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), wanted, rtol=1e-4, atol=1e-5)


def test_it_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, load, read = saved(tmp_path / "net.pt2", dynamic_shapes=even()), torch.export.load, []
    monkeypatch.setattr(torch.export, "load", lambda file: read.append(file) or load(file))
    assert applied(path, "--plan") == 0 and len(read) == 1
