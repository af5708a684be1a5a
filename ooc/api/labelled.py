"""Arrays of xarray: names of axes, coordinates and attributes of an input, for what is computed from it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


class OfLabelled(np.ndarray[Any, Any]):
    """The memory of an array of xarray, that was passed as such."""

    owner: Any = None

    def __array_finalize__(self, array: Any) -> None:
        self.owner = getattr(array, "owner", None)


def is_labelled(array: Any) -> bool:
    """Whether an object is an array of xarray."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(array, xarray.DataArray)


def seen(array: Any) -> OfLabelled:
    """The memory of an array of xarray, with what it belongs to."""
    view = np.asarray(array).view(OfLabelled)
    view.owner = array
    return view


def labelled(like: Any, values: Any, renamed: int | None) -> Any:
    """Values as an array of xarray like another: with its dims where there are as many, coordinates of those that are as long,
    its name and attributes. renamed: an axis along which positions are others, as filters are other channels; None: none is."""
    xarray = sys.modules["xarray"]
    about = {"name": like.name, "attrs": dict(like.attrs)}
    if values.ndim != like.ndim:
        return xarray.DataArray(values, **about)
    axes = zip(like.dims, like.shape, values.shape, strict=True)
    same = {dim for a, (dim, before, now) in enumerate(axes) if before == now and a != renamed}
    coords = {name: coord for name, coord in like.coords.items() if same.issuperset(coord.dims)}
    return xarray.DataArray(values, coords, like.dims, **about)
