"""Arrays across a network: in buckets, read and written, and behind servers, read. Needs tensorstore, for buckets moto too."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import socket
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
from ooc.sources import remote
from ooc.sources.beside import beside, making

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
    named = {
        "AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    name = f"b{abs(hash(request.node.name)):x}"
    client().create_bucket(Bucket=name)
    return f"s3://{name}"


def client() -> Any:
    return pytest.importorskip("boto3").client("s3")


def keys(bucket: str) -> list[str]:
    pages = client().get_paginator("list_objects_v2").paginate(Bucket=bucket.removeprefix("s3://"))
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


@pytest.mark.parametrize(
    "shared", [(), ("--resume",), ("--workers", "2", "--resume"), ("--parts", "1/1")], ids=["alone", "resume", "workers", "parts"]
)
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


def drafted(
    path: str, array: Any, axes: str = "", overwrite: bool = False, fail: BaseException | None = None, **options: Any
) -> None:
    """Written as commands write."""
    with making(path, overwrite) as room:
        with ooc.create(beside(path, room), array.shape, array.dtype, axes, overwrite=overwrite, **options) as sink:
            sink.write(whole(sink.shape), array)
        if fail is not None:
            raise fail


def put(bucket: str, *names: str) -> None:
    for name in names:
        client().put_object(Bucket=bucket.removeprefix("s3://"), Key=name, Body=b"mine")


@pytest.mark.parametrize("write", [written, drafted])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_lies_there_stays(bucket: str, write: Any, overwrite: bool) -> None:
    """Of others, be it called as chunks and levels are."""
    put(bucket, "x.zarr/notes.txt", "x.zarr/7/a", "x.zarr/c/0/0", "x.zarr-old/c/0/0", "x.zarr.txt", "g.zarr/s1/a", "g.zarr/c")
    before = keys(bucket)
    with pytest.raises(ooc.ArgumentError, match="holds"):
        write(f"{bucket}/x.zarr", VOLUME, overwrite=overwrite)
    assert keys(bucket) == before
    write(f"{bucket}/g.zarr/7", VOLUME, overwrite=overwrite)
    write(f"{bucket}/g.zarr/7", VOLUME[:3], overwrite=True)
    assert np.array_equal(np.asarray(ooc.open(f"{bucket}/g.zarr/7")), VOLUME[:3])
    assert {*before} < {*keys(bucket)}


STORED = {
    "v2 /": {"zarr_format": 2, "dimension_separator": "/"}, "v2 .": {"zarr_format": 2},
    "encoded as v2": {"zarr_format": 3, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "default": {"zarr_format": 3, "chunk_key_encoding": {"name": "default"}},
    "default .": {"zarr_format": 3, "chunk_key_encoding": {"name": "default", "separator": "."}},
}  # fmt: skip


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("fails", [False, True])
def test_arrays_of_others_are_replaced_whole(bucket: str, kind: str, fails: bool) -> None:
    options, about = dict(STORED[kind]), {"shape": [*VOLUME.shape]}
    if options.pop("zarr_format") == 2:
        driver, told = "zarr", {**about, "dtype": "<f4", "chunks": [8, 10, 12], **options}
    else:
        encoding = dict(options["chunk_key_encoding"])
        name = encoding.pop("name")
        named = {"name": name, **({"configuration": encoding} if encoding else {})}
        grid = {"name": "regular", "configuration": {"chunk_shape": [8, 10, 12]}}
        driver, told = "zarr3", {**about, "data_type": "float32", "chunk_grid": grid, "chunk_key_encoding": named}
    spec = {"driver": driver, "kvstore": remote.spec_of(f"{bucket}/y.zarr"), "metadata": told}
    ts.open(spec, create=True).result().write(VOLUME).result()
    before = keys(bucket)
    new = VOLUME[:, :7] * 2
    if fails:
        with pytest.raises(KeyboardInterrupt):
            drafted(f"{bucket}/y.zarr", new, "zyx", True, KeyboardInterrupt(), chunks=(8, 7, 12))
        assert keys(bucket) == before
    else:
        drafted(f"{bucket}/y.zarr", new, "zyx", True, chunks=(8, 7, 12))
        assert not {*before} & {*keys(bucket)} - {"y.zarr/zarr.json"}
    assert np.array_equal(np.asarray(ooc.open(f"{bucket}/y.zarr")), VOLUME if fails else new)


@pytest.mark.parametrize("at", ["zarr.json", "remove", "names"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ooc.StoreError])
def test_an_error_behind_the_last_write_loses_nothing(
    bucket: str, monkeypatch: pytest.MonkeyPatch, at: str, error: type[BaseException]
) -> None:
    """The answer to it is lost, or tidying fails: one of both arrays is there, whole, and the next run replaces it."""
    path, write = f"{bucket}/y.zarr", remote.KeyStore.write
    drafted(path, VOLUME, "zyx")
    seen = []

    def stores(store: Any, name: str, content: bytes) -> None:
        write(store, name, content)
        if name == "zarr.json" and store.path == path:
            seen.append(1)
            if at == name:
                raise error("the answer is lost")

    def fails(store: Any, *given: Any) -> Any:
        if seen:
            raise error("not now")
        return real(store, *given)

    real = getattr(remote.KeyStore, at, None)
    with monkeypatch.context() as patched:
        patched.setattr(remote.KeyStore, "write", stores)
        if real is not None:
            patched.setattr(remote.KeyStore, at, fails)
        with contextlib.suppress(error):
            drafted(path, VOLUME * 2, "zyx", True)
    assert seen
    assert np.array_equal(np.asarray(ooc.open(path)), VOLUME * 2)
    drafted(path, VOLUME * 3, "zyx", True)
    assert np.array_equal(np.asarray(ooc.open(path)), VOLUME * 3)
    assert len(keys(bucket)) == 2  # what it says, and its chunk


def test_versions_of_images_replace_each_other(bucket: str) -> None:
    picture = RNG.integers(0, 255, (3, 300, 520)).astype(np.uint8)
    for number, ome in enumerate(("0.5", "0.4", "0.4", "0.5")):
        drafted(f"{bucket}/x.ome.zarr", picture + number, "cyx", True, ome=ome)
        assert np.array_equal(np.asarray(ooc.open(f"{bucket}/x.ome.zarr")), picture + number)
        assert len([key for key in keys(bucket) if key.count("/") == 1]) == (1 if ome == "0.5" else 2)


def test_a_tensor_without_axes(bucket: str) -> None:
    for number in (3.0, 4.0):
        drafted(f"{bucket}/x.zarr", np.array(number, "f4"), overwrite=True)
        assert float(np.asarray(ooc.open(f"{bucket}/x.zarr"))) == number


def test_two_runs_at_once(bucket: str) -> None:
    """The second one is refused; with overwrite it wins, and the first one says that its own is gone."""
    path = f"{bucket}/y.zarr"
    with pytest.raises(ooc.ArgumentError, match="exists already"), making(path, False) as room:
        sink = ooc.create(beside(path, room), VOLUME.shape, "f4", "zyx")
        with pytest.raises(ooc.ArgumentError, match="another run writes there"):
            drafted(path, VOLUME, "zyx")
        drafted(path, VOLUME, "zyx", True)
        sink.write(whole(sink.shape), VOLUME * 5)
        sink.close()
    assert np.array_equal(np.asarray(ooc.open(path)), VOLUME)


def test_an_image_whose_run_was_killed_is_replaced(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, picture = f"{bucket}/x.ome.zarr", RNG.integers(0, 255, (300, 520)).astype(np.uint8)
    drafted(path, picture, "yx")
    monkeypatch.setattr("ooc.sources.beside.discard", lambda *given: None)
    for moment in ("publish", "tidy"):
        with monkeypatch.context() as patched:
            patched.setattr(f"ooc.sources.{'beside' if moment == 'publish' else 'drafts'}.{moment}", lambda *given: 1 / 0)
            with pytest.raises((ZeroDivisionError, ooc.StoreError)):
                drafted(path, picture + 1, "yx", True)
        drafted(path, picture + 2, "yx", True)
        assert np.array_equal(np.asarray(ooc.open(path)), picture + 2)
        assert not any(".draft" in key for key in keys(bucket))


def test_a_list_of_labels_that_cannot_be_read_stays(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = RNG.integers(0, 9, (30, 52)).astype(np.uint16)
    drafted(f"{bucket}/x.ome.zarr", labels, "yx")
    written(f"{bucket}/x.ome.zarr/labels/a", labels, "yx")
    read = remote.KeyStore.read

    def denied(store: Any, name: str, most: int) -> Any:
        if store.folder.endswith("labels"):
            raise ooc.StoreError("PERMISSION_DENIED")
        return read(store, name, most)

    with monkeypatch.context() as patched:
        patched.setattr(remote.KeyStore, "read", denied)
        with pytest.raises(ooc.StoreError):
            written(f"{bucket}/x.ome.zarr/labels/b", labels, "yx")
    told = json.loads(client().get_object(Bucket=bucket[5:], Key="x.ome.zarr/labels/zarr.json")["Body"].read())
    assert told["attributes"]["ome"]["labels"] == ["a"]


def test_a_run_that_another_one_replaced(bucket: str, tmp_path: Path, expected: Any) -> None:
    """One that was begun, and not finished: its result is gone, and the other's stays."""
    call = ("--input", str(tmp_path / "x.npy"), "--output", f"{bucket}/y.zarr")
    resumed = (*call, "--resume", "--work", str(tmp_path / "run"))
    source = KILLED.format(at="flush")
    killed = ["apply", str(tmp_path / "v.onnx"), "--quiet", "--budget", "300 KiB", *resumed]
    assert subprocess.run([sys.executable, "-c", source, *killed], capture_output=True, check=False).returncode == -9
    assert apply(tmp_path, *call, "--overwrite") == 0
    with ooc.open(f"{bucket}/y.zarr") as y:
        theirs = np.asarray(y)
    assert command(killed) == 2
    assert np.array_equal(np.asarray(ooc.open(f"{bucket}/y.zarr")), theirs)


def test_a_run_that_is_begun_anew(bucket: str, tmp_path: Path) -> None:
    """In the same folder, as one on a disk can be."""
    x = VOLUME.reshape(1, 2, 12, 30, 36)[:, :, 0]
    np.save(tmp_path / "x.npy", x)
    g = ooc.Graph("g")
    g.output(g.conv(g.input("x", x.shape[1:]), 3, 3, padding=1))
    plan = g.plan(batch=1, train=False, budget="64 KiB", device="cpu")
    for _ in range(2):
        tasks = ooc.tasks(plan, tmp_path / "x.npy", f"{bucket}/y.zarr", folder=tmp_path / "run")
    ooc.run_tasks(tasks)
    assert ooc.open(f"{bucket}/y.zarr").shape == (1, 3, 30, 36) and not any(".draft" in key for key in keys(bucket))


def test_names_of_drafts_on_a_disk_are_names(tmp_path: Path) -> None:
    for name in (".draft-a.ome.zarr", "x.zarr/.draft-a"):
        written(str(tmp_path / name), VOLUME, "zyx")
        assert np.array_equal(np.asarray(ooc.open(tmp_path / name)), VOLUME)


KILLED = """
import os, signal, sys
from ooc.workers.work import WorkFolder
from ooc.sources import drafts
at, what = {at!r}, WorkFolder.flush
def flush(self, unit):
    what(self, unit)
    if at == "flush": os.kill(os.getpid(), signal.SIGKILL)
WorkFolder.flush = flush
publish = drafts.KeyStore.write
def write(self, name, content):
    if at == "publish" and name == "zarr.json" and "draft" not in str(self.path): os.kill(os.getpid(), signal.SIGKILL)
    publish(self, name, content)
drafts.KeyStore.write = write
remove = drafts.KeyStore.remove
def removes(self, names):
    if at == "tidy" and ".draft" not in self.path: os.kill(os.getpid(), signal.SIGKILL)
    remove(self, names)
if at == "tidy": drafts.KeyStore.remove = removes
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
    for call in (lambda: ooc.create(f"{site}/y.zarr", (1,), "f4"), lambda: ooc.open(f"{site}/x.ome.zarr", "r+")):
        with pytest.raises(ooc.UnsupportedError, match="only read"):
            call()


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
    few = {"max_retries": 1, "initial_delay": "1ms", "max_delay": "2ms"}
    monkeypatch.setattr(remote, "CONTEXT", {**remote.CONTEXT, "http_request_retries": few})
    with pytest.raises(ooc.StoreError, match=r"127\.0\.0\.1"):
        ooc.open("http://127.0.0.1:9/x.zarr")


def test_a_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE", 0.5)
    refused = pytest.raises(ooc.StoreError, match=r"no answer within 0\.5 seconds")
    with socket.create_server(("127.0.0.1", 0)) as listening, refused:
        ooc.open(f"http://127.0.0.1:{listening.getsockname()[1]}/x.zarr")


@pytest.mark.parametrize(
    ("variables", "credentials"),
    [
        ({"AWS_PROFILE": "mine"}, {"type": "default", "profile": "mine"}), ({}, {"type": "default"}),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_PROFILE": "mine"}, {"type": "environment"}),
        ({"AWS_NO_SIGN_REQUEST": "YES", "AWS_ACCESS_KEY_ID": "a"}, {"type": "anonymous"}),
    ],
)  # fmt: skip
def test_who_asks(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], credentials: dict[str, str]) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_NO_SIGN_REQUEST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert remote.spec_of("s3://b/x.zarr")["aws_credentials"] == credentials
