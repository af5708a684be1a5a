"""Arrays across a network: in buckets, read and written, and behind servers, read. Needs tensorstore, for buckets moto too."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apply_files
import numpy as np
import pytest

import ooc
from ooc.cli.main import main as command
from ooc.ir.region import whole

ts = pytest.importorskip("tensorstore")
RNG = np.random.default_rng(1)
VOLUME = np.arange(24 * 30 * 36, dtype=np.float32).reshape(24, 30, 36) % 97
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
print("port", server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 that moto plays, in a process of its own; its address."""
    pytest.importorskip("moto.server")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if line.startswith("port"))
        yield f"http://127.0.0.1:{int(line.split()[1])}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A new bucket, and an environment that leads to it."""
    import boto3

    named = {
        "AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    name = f"b{abs(hash(request.node.name)):x}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}"


def keys(bucket: str) -> list[str]:
    import boto3

    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket.removeprefix("s3://"))
    return sorted(one["Key"] for page in pages for one in page.get("Contents", []))


def written(path: str, array: Any, axes: str = "", **options: Any) -> None:
    with ooc.create(path, array.shape, array.dtype, axes, **options) as sink:
        sink.write(whole(sink.shape), array)


@pytest.mark.parametrize("options", [{}, {"chunks": (8, 10, 12)}, {"chunks": (4, 10, 12), "shards": (8, 20, 24)}])
def test_an_array_in_a_bucket(bucket: str, options: dict[str, Any]) -> None:
    path = f"{bucket}/some/where/x.zarr/deep/name"
    written(path, VOLUME, "zyx", **options)
    with ooc.open(path) as source:
        assert source.axes == "zyx" and np.array_equal(np.asarray(source), VOLUME)
        assert np.array_equal(np.asarray(source[3:9, :, 5]), VOLUME[3:9, :, 5])
    with pytest.raises(ooc.ArgumentError, match="exists already"):
        ooc.create(path, (1,), "f4")
    with ooc.open(path, "r+") as sink:
        unit = sink.own(((0, 1), (0, 1), (0, 1)))
        values = np.full([s.extent for s in unit], 7, np.float32)
        sink.write(unit, values)
    expected = VOLUME.copy()
    expected[tuple(slice(s.lo, s.hi) for s in unit)] = 7
    assert np.array_equal(np.asarray(ooc.open(path)), expected)
    written(path, VOLUME[:5], "zyx", overwrite=True)
    assert np.array_equal(np.asarray(ooc.open(path)), VOLUME[:5])
    assert {"some/where/x.zarr/zarr.json", "some/where/x.zarr/deep/zarr.json"} < {*keys(bucket)}


def test_functions_read_and_write_buckets(bucket: str) -> None:
    x, w = VOLUME.reshape(1, 2, 12, 30, 36)[:, :, 0], np.ones((3, 2, 3, 3), np.float32)
    written(f"{bucket}/x.zarr", x, chunks=(1, 1, 10, 12))
    expected = ooc.conv(x, w, padding=1)
    ooc.create(f"{bucket}/y.zarr", expected.shape, "f4", chunks=(1, 2, 7, 36)).close()
    with ooc.device("cpu", budget="16 KiB"), ooc.open(f"{bucket}/x.zarr") as a, ooc.open(f"{bucket}/y.zarr", "r+") as b:
        ooc.conv(a, w, padding=1, out=b)
        with pytest.raises(ooc.OocError):
            ooc.conv(a, w[:2], padding=1, out=a)  # it reads what it would write
    assert np.array_equal(np.asarray(ooc.open(f"{bucket}/y.zarr")), expected)


def apply(folder: Path, *args: str) -> int:
    model = folder / "v.onnx"
    if not model.exists():
        apply_files.volume_network(model)
    return command(["apply", str(model), "--quiet", "--budget", "40 MiB", *args])


@pytest.fixture
def expected(tmp_path: Path) -> Any:
    """What the network makes of the volume, from file to file."""
    np.save(tmp_path / "x.npy", VOLUME[None, None])
    assert apply(tmp_path, "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy")) == 0
    return np.load(tmp_path / "y.npy")


@pytest.mark.parametrize("shared", [(), ("--resume",), ("--workers", "2", "--resume"), ("--parts", "1/1")])
def test_apply_from_bucket_to_bucket(bucket: str, tmp_path: Path, expected: Any, shared: tuple[str, ...]) -> None:
    written(f"{bucket}/x.zarr", VOLUME, "zyx", chunks=(8, 10, 12))
    more = (*shared, "--work", str(tmp_path / "run")) if shared else ()
    call = ("--input", f"{bucket}/x.zarr", "--output", f"{bucket}/y.zarr", *more)
    assert apply(tmp_path, *call) == 0
    y = np.asarray(ooc.open(f"{bucket}/y.zarr"))
    assert np.array_equal(y.reshape(expected.shape), expected)
    assert not any(".draft" in key for key in keys(bucket))
    if shared:
        assert apply(tmp_path, *call) == 0  # it is done
        assert apply(tmp_path, *call[:4], "--resume") == 2  # it has no place for the journal
        return
    assert apply(tmp_path, *call) == 2  # it is there
    for separator in (".", "/"):  # of names of chunks: what is replaced stays until the other is whole
        assert apply(tmp_path, *call, "--overwrite") == 0
        assert np.array_equal(np.asarray(ooc.open(f"{bucket}/y.zarr")), y)
        chunks = [key for key in keys(bucket) if key.startswith("y.zarr/c")]
        assert chunks and all(key.startswith(f"y.zarr/c{separator}") for key in chunks)


@pytest.mark.parametrize("version", ["0.5", "0.4"])
def test_images_and_labels_in_a_bucket(bucket: str, tmp_path: Path, version: str) -> None:
    picture = RNG.integers(0, 255, (1, 3, 300, 520)).astype(np.uint8)
    np.save(tmp_path / "x.npy", picture)
    local, far = tmp_path / "y.ome.zarr", f"{bucket}/y.ome.zarr"
    model = tmp_path / "p.onnx"
    apply_files.picture_network(model)
    for path in (str(local), far, far):
        more = ["--overwrite"] if path == far else []
        call = ["apply", str(model), "--input", str(tmp_path / "x.npy"), "--output", path, "--ome", version, "--quiet", *more]
        assert command(call) == 0
    for level in (0, 1):
        assert np.array_equal(np.asarray(ooc.open(f"{far}:{level}")), np.asarray(ooc.open(f"{local}:{level}")))
    labels = RNG.integers(0, 9, (300, 520)).astype(np.uint16)
    for path in (f"{local}/labels/cells", f"{far}/labels/cells"):
        written(path, labels, "yx")
    assert np.array_equal(np.asarray(ooc.open(f"{far}/labels/cells:1")), np.asarray(ooc.open(f"{local}/labels/cells:1")))
    assert not any(".draft" in key for key in keys(bucket))
    assert command([*call, "--overwrite"]) == 2  # it holds labels


def test_what_a_failed_run_leaves(bucket: str, tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, and what was there stays."""
    written(f"{bucket}/y.zarr", VOLUME, "zyx")
    before = keys(bucket)
    from ooc.networks.session import Session

    def fails(*args: Any, **options: Any) -> None:
        options["out"].write(whole(options["out"].shape), np.zeros(options["out"].shape, np.float32))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Session, "forward", fails)
    call = ("--input", str(tmp_path / "x.npy"), "--output", f"{bucket}/y.zarr", "--overwrite")
    assert apply(tmp_path, *call) == 2
    assert keys(bucket) == before and np.array_equal(np.asarray(ooc.open(f"{bucket}/y.zarr")), VOLUME)


KILLED = """
import os, signal, sys
from ooc.workers.work import WorkFolder
from ooc.sources import drafts
at, what = {at!r}, WorkFolder.flush
def flush(self, unit):
    what(self, unit)
    if at == "flush": os.kill(os.getpid(), signal.SIGKILL)
WorkFolder.flush = flush
publish = drafts.Store.write
def write(self, name, content):
    if at == "publish" and name == "zarr.json" and "draft" not in str(self.path): os.kill(os.getpid(), signal.SIGKILL)
    publish(self, name, content)
drafts.Store.write = write
remove = drafts.Store.remove
def removes(self, names):
    if at == "tidy" and ".draft" not in self.path: os.kill(os.getpid(), signal.SIGKILL)
    remove(self, names)
if at == "tidy": drafts.Store.remove = removes
from ooc.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("at", ["flush", "publish", "tidy"])
def test_a_killed_worker(bucket: str, tmp_path: Path, expected: Any, at: str) -> None:
    """A run into a bucket that is killed goes on, and shows nothing before it is whole."""
    path, work = f"{bucket}/y.zarr", tmp_path / "run"
    call = [
        "apply", str(tmp_path / "v.onnx"), "--input", str(tmp_path / "x.npy"), "--output", path, "--quiet", "--resume",
        "--budget", "300 KiB", "--work", str(work),
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", KILLED.format(at=at), *call], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    if at != "tidy":
        with pytest.raises(ooc.StoreError):
            ooc.open(path)
        assert command([*call[:8], "--overwrite"]) in (0, 2)
    assert command(call) == 0
    assert np.array_equal(np.asarray(ooc.open(path)).reshape(expected.shape), expected)
    assert not any(".draft" in key for key in keys(bucket))


# ---- servers


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A server on the loopback of what lies in a folder; its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path))) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


@pytest.mark.parametrize("version", ["0.5", "0.4"])
def test_images_behind_a_server(site: str, tmp_path: Path, version: str) -> None:
    if version == "0.4":
        pytest.importorskip("zarr")
    picture = RNG.integers(0, 255, (3, 300, 520)).astype(np.uint8)
    written(str(tmp_path / "x.ome.zarr"), picture, "cyx", ome=version)
    with ooc.open(f"{site}/x.ome.zarr") as source, ooc.open(f"{site}/x.ome.zarr:1") as coarse:
        assert source.axes == "cyx" and np.array_equal(np.asarray(source), picture)
        assert np.array_equal(np.asarray(coarse), np.asarray(ooc.open(tmp_path / "x.ome.zarr:1")))
        assert np.array_equal(np.asarray(source[1, 7:9]), picture[1, 7:9])
    with pytest.raises(ooc.UnsupportedError, match="only read"):
        ooc.create(f"{site}/y.zarr", (1,), "f4")


def test_apply_from_a_server(site: str, tmp_path: Path, expected: Any) -> None:
    written(str(tmp_path / "x.zarr"), VOLUME, "zyx", chunks=(8, 10, 12))
    assert apply(tmp_path, "--input", f"{site}/x.zarr", "--output", str(tmp_path / "z.npy"), "--resume") == 0
    assert np.array_equal(np.load(tmp_path / "z.npy"), expected)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"{", "no JSON"), (b"[]", "JSON object"), (json.dumps({"zarr_format": 3, "node_type": "array"}).encode(), "make no sense")],
)
def test_what_a_server_says_is_not_trusted(site: str, tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr/zarr.json").write_bytes(content)
    with pytest.raises(ooc.StoreError, match=told):
        ooc.open(f"{site}/x.zarr")


def test_a_chunk_that_is_damaged(site: str, tmp_path: Path) -> None:
    written(str(tmp_path / "x.zarr"), VOLUME, "zyx", chunks=(8, 10, 12))
    (tmp_path / "x.zarr/c/0/0/0").write_bytes(b"nothing of a chunk")
    with ooc.open(f"{site}/x.zarr") as source, pytest.raises(ooc.StoreError, match=r"x\.zarr: reading failed"):
        source.read(whole(source.shape), np.empty(source.shape, source.dtype))


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from ooc.sources import remote

    few = {"max_retries": 1, "initial_delay": "1ms", "max_delay": "2ms"}
    monkeypatch.setattr(remote, "CONTEXT", {**remote.CONTEXT, "http_request_retries": few})
    with pytest.raises(ooc.StoreError, match=r"127\.0\.0\.1"):
        ooc.open("http://127.0.0.1:9/x.zarr")
