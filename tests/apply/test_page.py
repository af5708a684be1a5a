"""The page of a run: it has all that it shows, fetches nothing, runs nothing, and quotes what strangers wrote."""

from __future__ import annotations

import base64
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.apply import page
from ooc.cli.main import main

apply_files = pytest.importorskip("apply_files")


class Read(HTMLParser):
    """Tags that were opened and not closed, and all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.kinds, self.told = list[str](), set[str](), list[tuple[str, str]]()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.kinds.add(tag)
        self.told += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br", "path", "image"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "image"):
            assert self.open.pop() == tag


def pixels(text: str) -> Any:
    """The picture of a page."""
    (data,) = re.findall(r"data:image/png;base64,([^\"]+)", text)
    raw = base64.b64decode(data)
    width, height = (int.from_bytes(raw[16 + 4 * i : 20 + 4 * i], "big") for i in range(2))
    begin = raw.index(b"IDAT") + 4
    packed = raw[begin : begin + int.from_bytes(raw[begin - 8 : begin - 4], "big")]
    return np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, width + 1)[:, 1:]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    apply_files.picture_network(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(1).integers(0, 255, (1, 3, 620, 500), np.uint8))
    return tmp_path


def test_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["apply", f"{folder}/m.onnx", "--input", f"{folder}/x.npy", "--output", f"{folder}/<b>y.npy", "--budget", "2 MiB"]
    assert main([*given, "--report", f"{folder}/r.html", "--verify", "2"]) == 0
    text = (folder / "r.html").read_text()
    read = Read(text)
    assert not read.open and "script" not in read.kinds and "<b>" not in text
    assert not [value for name, value in read.told if name in ("href", "src") and not value.startswith("data:")]
    assert "@import" not in text and "url(" not in text
    for words in (
        "measured:",
        "predicted:",
        "in use at most, the budget is 2 MiB",
        "conv.fprop",
        "2 windows were computed again",
        "tiles",
    ):
        assert words in text
    shown, y = pixels(text), np.load(folder / "<b>y.npy")
    assert shown.shape == (310, 250)
    np.testing.assert_array_equal(shown, page.grey(y[0, 0, ::2, ::2]))


def test_a_plan(tmp_path: Path) -> None:
    assert main(["network", "vgg16", "--batch", "2", "--side", "32", "--policy", "auto", "--report", f"{tmp_path}/r.html"]) == 0
    read = Read((tmp_path / "r.html").read_text())
    assert not read.open and "svg" in read.kinds
    assert main(["network", "vgg16", "--batch", "2", "--report", f"{tmp_path}/r.html"]) == 2


@pytest.mark.parametrize("more", [("--workers", "2"), ("--resume",), ("--plan",)], ids=str)
def test_what_has_no_page(more: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["apply", f"{folder}/m.onnx", "--input", f"{folder}/x.npy", "--output", f"{folder}/y.npy"]
    assert main([*given, "--report", f"{folder}/r.html", *more]) == 2
    assert "--report: of one process" in capsys.readouterr().err and not (folder / "y.npy").exists()


@pytest.mark.parametrize(
    "plane", [np.zeros((3, 4)), np.full((3, 4), np.nan), np.array([[np.inf, 1.0]]), np.ones((2, 2), complex)], ids=str
)
def test_any_numbers_are_shown(plane: Any) -> None:
    assert page.grey(plane).dtype == np.uint8


def test_notebooks(tmp_path: Path) -> None:
    graph = ooc.Graph("<i>net")
    graph.output(graph.conv(graph.input("x", (2, 16, 16)), 4, 3))
    plan = graph.plan(batch=2, train=False, budget="64 KiB")
    with ooc.create(tmp_path / "a.zarr", (4, 4), "u1", "yx") as source:
        for shown in (graph, plan, source, plan.session()):
            if hasattr(shown, "_repr_html_"):
                read = Read(shown._repr_html_())
                assert not read.open and "i" not in read.kinds
    assert "svg" in Read(plan._repr_html_()).kinds and "1 conv" in graph._repr_html_()
