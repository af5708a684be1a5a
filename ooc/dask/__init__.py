"""ooc for Dask: networks on dask arrays, which stay lazy, and tasks run by the workers of a cluster."""

from __future__ import annotations

from ooc.errors import UnsupportedError

try:
    import dask  # noqa: F401
    import distributed  # noqa: F401
except ImportError:
    raise UnsupportedError('ooc.dask needs dask and distributed; pip install "ooc[dask]"') from None

from ooc.dask.apply import apply
from ooc.dask.cluster import certificates, local
from ooc.dask.running import connected, run

__all__ = ["apply", "certificates", "connected", "local", "run"]
