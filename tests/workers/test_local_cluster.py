"""Workers on this machine are nobody else's: who listens, who may connect, what they import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from ooc.cli.main import main
from ooc.errors import BackendError

distributed = pytest.importorskip("distributed")
pytest.importorskip("cryptography")
dask = pytest.importorskip("ooc.dask")
dask_config = pytest.importorskip("dask.config")

pytestmark = pytest.mark.filterwarnings("ignore")
LISTENS = "0A"
LOOPBACK = ("0100007F", "0" * 24 + "01000000")  # 127.0.0.1 and ::1, as /proc/net has them


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with dask.local(2) as found:
        found.wait_for_workers(2)
        yield found


def processes(client: Any) -> set[int]:
    """This process, which has the scheduler and the nannies, and the workers."""
    return {os.getpid(), *client.run(os.getpid).values()}


def listening(pids: set[int]) -> list[str]:
    """The addresses, in hexadecimal, on which processes listen."""
    inodes = set()
    for fd in (fd for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir()):
        try:
            inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(fd)))
        except FileNotFoundError:
            continue
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[3] == LISTENS and row[9] in inodes]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc")
def test_all_of_it_listens_on_this_machine_alone(client: Any) -> None:
    found = listening(processes(client))
    assert len(found) >= 5  # a scheduler, two nannies, two workers
    assert set(found) <= set(LOOPBACK)


def test_no_pages_are_served(client: Any) -> None:
    def routes(dask_worker: Any) -> list[str]:
        return [rule.matcher._path for rule in dask_worker.http_application.wildcard_router.rules]

    assert all(found == [] for found in client.run(routes).values())
    assert client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.http_application.applications)) == 0


def test_nobody_connects_without_the_certificate(client: Any) -> None:
    told = client.scheduler_info()
    reached = [client.scheduler.address, *told["workers"], *(worker["nanny"] for worker in told["workers"].values())]
    assert len(reached) == 5
    for address in reached:
        assert address.startswith("tls://127.0.0.1:")
        code = (
            "import asyncio, distributed, sys\n"
            "from distributed.core import rpc\n"
            "async def ask(address, args):\n"
            "    async with rpc(address, timeout=3, connection_args=args) as r:\n"
            "        print('ANSWERED', await asyncio.wait_for(r.identity(), 3))\n"
            "own = distributed.Security.temporary().get_connection_args('client')\n"
            "plain = sys.argv[1].replace('tls://', 'tcp://')\n"
            "for address, args in ((sys.argv[1], own), (plain, {})):\n"
            "    try:\n"
            "        asyncio.run(ask(address, args))\n"
            "    except Exception as error:\n"
            "        print('REFUSED', type(error).__name__)\n"
        )
        done = subprocess.run([sys.executable, "-P", "-c", code, address], capture_output=True, text=True, timeout=60)
        assert done.stdout.split()[::2] == ["REFUSED", "REFUSED"], (done.stdout, done.stderr)


def test_what_workers_import_is_not_in_a_folder_of_all(client: Any) -> None:
    """Dask puts its folders first on the path of modules; in /tmp anybody may have made them before."""

    own = Path(dask_config.get("temporary-directory"))
    for path in (sys.path, *client.run(lambda: __import__("sys").path).values()):
        scratch = [p for p in path if "dask-scratch-space" in p]
        assert scratch and all(Path(p).is_relative_to(own) for p in scratch) and not own.stat().st_mode & 0o077


def test_a_worker_that_dies_comes_again_as_closed(client: Any) -> None:
    pid = sorted(client.run(os.getpid).values())[0]
    os.kill(pid, 9)

    def back() -> bool:
        found = set(client.run(os.getpid, on_error="ignore").values())
        return pid not in found and len(found) == 2

    until(back)
    assert set(listening(processes(client))) <= set(LOOPBACK)


@pytest.mark.parametrize("call", ["ooc.dask.local(2)", "sys.exit(ooc.cli.main.main(sys.argv[1:]))"])
def test_without_certificates_nothing_starts(call: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules['cryptography'] = None; import ooc.dask, ooc.cli.main\nwith {call}: print('STARTED')"
    args = ["apply", "m.onnx", "--input", "x.npy", "--output", "y.npy", "--workers", "2"]
    done = subprocess.run([sys.executable, "-P", "-c", code, *args], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode and "STARTED" not in done.stdout
    assert 'pip install "ooc[dask]"' in done.stderr.splitlines()[-1] and "cryptography" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_cluster_of_the_users_own_is_taken_as_it_is(tmp_path: Path) -> None:
    apply_files = pytest.importorskip("apply_files")
    np.save(tmp_path / "v.npy", np.random.default_rng(3).standard_normal((1, 1, 12, 10, 14)).astype(np.float32))
    apply_files.volume_network(tmp_path / "v.onnx")
    args = ["apply", str(tmp_path / "v.onnx"), "--input", str(tmp_path / "v.npy"), "--budget", "300KiB", "--output"]
    assert main([*args, str(tmp_path / "here.npy")]) == 0
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        assert main([*args, str(tmp_path / "there.npy"), "--dask", cluster.scheduler_address]) == 0
    assert main([*args, str(tmp_path / "local.npy"), "--workers", "2"]) == 0
    here, there, local = (np.load(tmp_path / f"{name}.npy") for name in ("here", "there", "local"))
    assert np.allclose(here, there, 1e-4, 1e-5) and np.array_equal(there, local)


def test_what_dask_does_by_itself_is_as_before() -> None:
    """A cluster of ours, or one that does not answer, is nobody's default afterwards."""
    before = dask_config.get("scheduler", None)
    with pytest.raises(BackendError, match="no scheduler"):
        dask.connected("tcp://127.0.0.1:1", 1)
    assert dask_config.get("scheduler", None) == before
