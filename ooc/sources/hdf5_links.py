"""Where a dataset of an HDF5 file has its numbers: in other files too, if the file says so."""

from __future__ import annotations

import os
from typing import Any

from ooc.errors import StoreError
from ooc.files.reached import REMEDY, inside
from ooc.sources.place import TensorPath

MOST = 64  # links and files behind each other


def check_dataset(h5py: Any, at: TensorPath, file: Any, name: str, depth: int = 0) -> None:
    """Raise StoreError where a dataset, or a link on the way to it, leads out of the folder of the file that was named."""
    folder = os.path.dirname(os.path.realpath(at.file))
    here = os.path.dirname(os.path.abspath(file.filename))
    if depth > MOST:
        raise StoreError(f"{at.text}: {name}: links that lead to each other")
    node: Any = file
    parts = [part for part in name.split("/") if part not in ("", ".")]
    for i, part in enumerate(parts):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        rest = "/".join(parts[i + 1 :])
        if isinstance(link, h5py.ExternalLink):
            for path in _candidates(at, os.fsdecode(link.filename), here, folder):
                with h5py.File(path, "r") as other:
                    check_dataset(h5py, at, other, f"{link.path}/{rest}", depth + 1)
            return
        if isinstance(link, h5py.SoftLink):
            begin = "" if link.path.startswith("/") else node.name
            check_dataset(h5py, at, file, f"{begin}/{link.path}/{rest}", depth + 1)
            return
        if link is None:
            return  # which who opens it tells
        node = node[part]
    if isinstance(node, h5py.Dataset):
        _check_numbers(h5py, at, node, here, folder, depth)


def _check_numbers(h5py: Any, at: TensorPath, dataset: Any, here: str, folder: str, depth: int) -> None:
    """Look at files of plain numbers, and at datasets of which this one is made."""
    for name, *_ in dataset.external or ():
        _candidates(at, os.fsdecode(name), os.getcwd(), folder)  # the library looks there, not beside the file
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        if source.file_name == ".":
            check_dataset(h5py, at, dataset.file, source.dset_name, depth + 1)
            continue
        for path in _candidates(at, os.fsdecode(source.file_name), here, folder):
            with h5py.File(path, "r") as other:
                check_dataset(h5py, at, other, source.dset_name, depth + 1)


def _candidates(at: TensorPath, name: str, here: str, folder: str) -> list[str]:
    """The files that the library may take for a name. Raises StoreError where one lies elsewhere."""
    if "%" in name:
        raise StoreError(f"{at.text}: leads to files whose names are counted, {name}; {REMEDY}")
    tried = {os.path.join(here, name), os.path.abspath(name), os.path.join(here, os.path.basename(name))}
    paths = [path for path in sorted(tried) if os.path.lexists(path)]
    for path in paths:
        inside(path, folder, at.text)
    return paths
