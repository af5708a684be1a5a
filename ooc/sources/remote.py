"""Stores across a network: buckets (s3://), read and written, and servers (https://), read; by keys, through tensorstore."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from ooc.errors import ArgumentError, StoreError, UnsupportedError
from ooc.sources.checks import faults, library

SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
URL = re.compile(r"(s3|https?)://([^/?#\s]+)(/[^?#]*)?", re.IGNORECASE)
RETRIES = {"max_retries": 8, "initial_delay": "100ms", "max_delay": "4s"}  # some 15 seconds in all
CONTEXT = {"cache_pool": {"total_bytes_limit": 0}, "s3_request_retries": RETRIES, "http_request_retries": RETRIES}
MISSING = ("PERMISSION_DENIED", "NOT_FOUND")  # what servers answer of keys that are not there


def is_remote(path: str) -> bool:
    """Whether a path names something across a network."""
    return SCHEME.match(path) is not None


def check_url(text: str) -> None:
    """Raise UnsupportedError, ArgumentError for a scheme that is not served, or a URL that has more than a host and a path."""
    match = SCHEME.match(text)
    if match is not None and match[1].lower() not in ("s3", "https", "http"):
        raise UnsupportedError(f"path: {text}: expected s3:// or https://; copy it here, or mount the store")
    if match is not None and (not URL.fullmatch(text) or ".." in text.split("/")):
        raise ArgumentError(f"path: {text}: expected s3://bucket/path or https://host/path, without a query")


def is_writable(path: str) -> bool:
    """Whether a store is one that is written to."""
    return path.lower().startswith("s3://")


def spec_of(folder: str) -> dict[str, Any]:
    """What tensorstore opens a folder by. Where a bucket is, and who asks, say the variables of AWS's own tools."""
    match = URL.fullmatch(folder)
    assert match is not None, "place() has checked it"
    scheme, host, path = match[1].lower(), match[2], (match[3] or "").strip("/") + "/"
    if scheme != "s3":
        return {"driver": "http", "base_url": f"{scheme}://{host}", "path": f"/{path}"}
    spec: dict[str, Any] = {"driver": "s3", "bucket": host, "path": path}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint or region:
        spec["aws_region"] = region or "us-east-1"
    if endpoint:
        spec["endpoint"] = endpoint
    if os.environ.get("AWS_NO_SIGN_REQUEST", "").lower() in ("yes", "true", "1"):
        spec["aws_credentials"] = {"type": "anonymous"}
    elif os.environ.get("AWS_ACCESS_KEY_ID"):
        spec["aws_credentials"] = {"type": "environment"}
    return spec


class Store:
    """The small objects of a folder across a network, and what is removed of it.

    Parameters:
        folder: its URL.
        path: how errors call it; default: the folder.
    """

    def __init__(self, folder: str, path: str = "") -> None:
        self.path = path or folder
        tensorstore = library("tensorstore", self.path, "a store across a network", "remote")
        self._range = tensorstore.KvStore.KeyRange
        with faults(self.path, "opening"):
            self._keys = tensorstore.KvStore.open(spec_of(folder), context=tensorstore.Context(CONTEXT)).result()

    def read(self, name: str, most: int) -> bytes | None:
        """An object; None: there is none, or none that is shown. Raises StoreError, for one of more bytes too."""
        with faults(self.path, f"reading {name}"):
            try:
                held = self._keys.read(name, byte_range=slice(0, most + 1)).result()
            except ValueError as error:
                if str(error).startswith(MISSING):
                    return None
                if not str(error).startswith("OUT_OF_RANGE"):
                    raise
                held = self._keys.read(name).result()  # it has fewer bytes, of which servers may speak so
        if held.state != "value":
            return None
        if len(held.value) > most:
            raise StoreError(f"{self.path}: {name} is larger than {most} bytes")
        return bytes(held.value)

    def version(self, name: str) -> str:
        """What tells an object from what it was and will be; "": there is none."""
        with faults(self.path, f"reading {name}"):
            held = self._keys.read(name).result()
        return held.stamp.generation.hex() if held.state == "value" else ""

    def write(self, name: str, content: bytes) -> None:
        """Put an object, whole at once."""
        with faults(self.path, f"writing {name}"):
            self._keys.write(name, content).result()

    def names(self, prefix: str = "") -> list[str]:
        """Of all objects, of those below it too, that begin so."""
        with faults(self.path, "listing"):
            return [key.decode() for key in self._keys.list(self._within(prefix)).result()]

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; whether they are there does not matter."""
        with faults(self.path, "removing"):
            for pending in [self._keys.write(name, None) for name in names]:
                pending.result()

    def clear(self, prefix: str = "") -> None:
        """Remove all objects that begin so."""
        with faults(self.path, "removing"):
            self._keys.delete_range(self._within(prefix)).result()

    def _within(self, prefix: str) -> Any:
        """All keys that begin so: those before the first that does not."""
        return self._range(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)) if prefix else self._range()
