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
PATIENCE = 120  # seconds for an answer


def is_remote(path: str) -> bool:
    """Whether a path names something across a network."""
    return SCHEME.match(path) is not None


def check_url(text: str) -> None:
    """Raise UnsupportedError, ArgumentError for a scheme that is not served, or a URL that has more than a host and a path."""
    match = SCHEME.match(text)
    if match is not None and match[1].lower() not in ("s3", "https", "http"):
        raise UnsupportedError(f"path: {text}: expected s3:// or https://; copy it here, or mount the store")
    parts = text[match.end() :].rstrip("/").split("/") if match is not None else ()
    if match is not None and (not URL.fullmatch(text) or {"", ".", ".."} & {*parts} or match[0] != match[0].lower()):
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
    profile = os.environ.get("AWS_PROFILE")
    if is_anonymous():
        spec["aws_credentials"] = {"type": "anonymous"}
    elif os.environ.get("AWS_ACCESS_KEY_ID"):
        spec["aws_credentials"] = {"type": "environment"}
    else:
        spec["aws_credentials"] = {"type": "default", **({"profile": profile} if profile else {})}
    return spec


def is_anonymous() -> bool:
    """Whether buckets are asked without credentials."""
    return os.environ.get("AWS_NO_SIGN_REQUEST", "").lower() in ("yes", "true", "1")


def answer(future: Any) -> Any:
    """What a store answers. Raises StoreError where it does not, long after all that it was asked again."""
    try:
        return future.result(timeout=PATIENCE)
    except TimeoutError:
        raise StoreError(f"no answer within {PATIENCE} seconds") from None


class KeyStore:
    """The small objects of a folder across a network, and what is removed of it.

    Parameters:
        folder: its URL.
        path: how errors call it; default: the folder.
    """

    def __init__(self, folder: str, path: str = "") -> None:
        self.folder, self.path = folder, path or folder
        tensorstore = library("tensorstore", self.path, "a store across a network", "remote")
        self._range = tensorstore.KvStore.KeyRange
        with faults(self.path, "opening"):
            self._keys = answer(tensorstore.KvStore.open(spec_of(folder), context=tensorstore.Context(CONTEXT)))
        self._hides = not is_writable(folder) or is_anonymous()  # who may not list keys is denied those that are not there

    def read(self, name: str, most: int) -> bytes | None:
        """An object; None: there is none, or none that is shown. Raises StoreError, for one of more bytes too."""
        with faults(self.path, f"reading {name}"):
            try:
                held = answer(self._keys.read(name, byte_range=slice(0, most + 1)))
            except ValueError as error:
                if self._hides and str(error).startswith("PERMISSION_DENIED"):
                    return None
                if not str(error).startswith("OUT_OF_RANGE"):
                    raise
                held = answer(self._keys.read(name))  # it has fewer bytes
        if held.state != "value":
            return None
        if len(held.value) > most:
            raise StoreError(f"{self.path}: {name} is larger than {most} bytes")
        return bytes(held.value)

    def version(self, name: str) -> str:
        """What tells an object from what it was and will be; "": there is none."""
        with faults(self.path, f"reading {name}"):
            held = answer(self._keys.read(name))
        return held.stamp.generation.hex() if held.state == "value" else ""

    def write(self, name: str, content: bytes) -> None:
        """Put an object, whole at once."""
        with faults(self.path, f"writing {name}"):
            answer(self._keys.write(name, content))

    def names(self, prefix: str = "") -> list[str]:
        """Of all objects, of those below it too, that begin so."""
        with faults(self.path, "listing"):
            return [key.decode() for key in answer(self._keys.list(self._within(prefix)))]

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; whether they are there does not matter."""
        with faults(self.path, "removing"):
            for pending in [self._keys.write(name, None) for name in names]:
                answer(pending)

    def clear(self, prefix: str = "") -> None:
        """Remove all objects that begin so."""
        with faults(self.path, "removing"):
            answer(self._keys.delete_range(self._within(prefix)))

    def _within(self, prefix: str) -> Any:
        """All keys that begin so: those before the first that does not."""
        return self._range(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)) if prefix else self._range()
