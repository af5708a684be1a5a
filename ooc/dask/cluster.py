"""Workers of Dask on this machine that only their user's process reaches."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import distributed

from ooc.backends.cpu.backend import default_threads
from ooc.errors import UnsupportedError
from ooc.workers.child import starting

HOST = "127.0.0.1"
QUIET = logging.CRITICAL  # what fails is told by us
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # workers end with whoever was interrupted
# Whoever can connect to a scheduler or a worker runs what he likes: on a machine that others use, too, certificates tell who may.
SILENT: dict[str, list[str]] = {
    "distributed.scheduler.http.routes": [],  # Dask always opens a port for its pages; nothing is there
    "distributed.worker.http.routes": [],
}


def certificates() -> distributed.Security:
    """New ones, which nobody else has. Raises UnsupportedError where the package that makes them is missing."""
    try:
        return distributed.Security.temporary()
    except ImportError:
        raise UnsupportedError(
            'workers on this machine need cryptography, so that nobody else can use them; pip install "ooc[dask]"'
        ) from None


@contextmanager
def local(workers: int, gpus: bool = False) -> Iterator[distributed.Client]:
    """A client of so many processes on this machine, which share its processors, or have a GPU each; they end with the block.
    They listen on this machine alone, and to nobody without the certificate of the block. Raises UnsupportedError."""
    security = certificates()
    threads = max(1, default_threads() // workers)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(workers)))).split(",")
    closed = {"host": HOST, "protocol": "tls", "security": security, "dashboard": False, "dashboard_address": f"{HOST}:0"}

    def worker(i: int) -> dict[str, Any]:
        quiet = {"silence_logs": QUIET, "preload": [DEAF]}
        env = {"CUDA_VISIBLE_DEVICES": visible[i % len(visible)]} if gpus else {}
        return {"cls": distributed.Nanny, "options": {"nthreads": threads, "memory_limit": 0, "env": env, **quiet, **closed}}

    # Dask puts its folder first on the path of modules: one in /tmp whose name is known may be somebody else's.
    with (
        starting(),
        tempfile.TemporaryDirectory(prefix="ooc-dask-") as folder,
        dask.config.set({**SILENT, "temporary-directory": folder}),
        distributed.SpecCluster(
            scheduler={"cls": distributed.Scheduler, "options": closed}, workers={i: worker(i) for i in range(workers)},
            security=security, silence_logs=QUIET,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        yield client
