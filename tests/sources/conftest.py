"""The two libraries for Zarr."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(params=["tensorstore", "zarr-python"])
def zarr_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Version 3 through either library."""
    if request.param == "tensorstore":
        pytest.importorskip("tensorstore")
    else:
        monkeypatch.setitem(sys.modules, "tensorstore", None)
    return str(request.param)
