"""Runs on inputs of every format, gone on with: what a work folder says of a file is what the same command says again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ooc
from ooc.cli.main import main
from ooc.ir.region import whole

apply_files = pytest.importorskip("apply_files")


@pytest.mark.parametrize("name", ["x.npy", "x.tif", "x.nii", "x.zarr", "x.h5:/x", "x.nii::,:,2:8", "x.tif::,:,1:9"])
def test_a_run_on_every_input_is_gone_on_with(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(2).standard_normal((3, 12, 10)).astype(np.float32)
    with ooc.create(tmp_path / name.partition("::")[0], x.shape, x.dtype) as sink:
        sink.write(whole(x.shape), x)
    apply_files.picture_network(tmp_path / "m.onnx")
    name = name.replace("::,", ":::,")
    files = ["--input", f"{tmp_path}/{name}", "--axes", "cyx", "--output", f"{tmp_path}/y.npy", "--resume", "--json"]
    for finished in (False, True):
        assert main(["apply", f"{tmp_path}/m.onnx", *files]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["computed"] == 0) == finished and told["tasks"]
