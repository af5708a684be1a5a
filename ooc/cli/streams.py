"""Standard input and output in the place of files, `-`; what is said while the output is a tensor, or nothing is to be said."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace

from ooc.cli.ending import ending_cleanly
from ooc.errors import ArgumentError
from ooc.runtime.context import current_device
from ooc.runtime.context import device as named_device

STREAM = "-"


@contextlib.contextmanager
def piped(args: argparse.Namespace, alone: bool) -> Iterator[argparse.Namespace]:
    """The arguments with files for streams: what comes in on standard input is a .npy file, and so is what goes out when the
    block is left without an error. What is said goes to standard error then; with --quiet, nowhere, but for a plan that was
    wanted. alone: whether one process does all of it. Raises ArgumentError."""
    incoming, outgoing = args.input == STREAM, args.output == STREAM
    if (incoming or outgoing) and not alone:
        raise ArgumentError(
            "-: streams are read and written by one process; name files for --workers, --dask, --parts and --resume"
        )
    if outgoing and args.json and not args.plan:
        raise ArgumentError("--json: does not go with --output -, where the tensor is; name a file")
    if incoming and sys.stdin is None:
        raise ArgumentError("--input -: there is no standard input")
    if outgoing and sys.__stdout__ is None:  # closed by whoever started us; what is said goes nowhere then, a tensor must not
        raise ArgumentError("--output -: there is no standard output")
    with contextlib.ExitStack() as stack:
        stdout = sys.stdout
        if args.quiet and not args.json and not args.plan:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        elif outgoing and not args.plan:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if not incoming and not outgoing:
            yield args
            return
        stack.enter_context(ending_cleanly())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ooc-"))
        spooled = argparse.Namespace(**vars(args))
        if incoming:
            spooled.input = os.path.join(folder, "stdin.npy")
            with open(spooled.input, "wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        if outgoing:
            spooled.output = os.path.join(folder, "stdout.npy")
        yield spooled
        if outgoing and not args.plan:
            with open(spooled.output, "rb") as file:
                shutil.copyfileobj(file, stdout.buffer)
            stdout.flush()


@contextlib.contextmanager
def threaded(args: argparse.Namespace) -> Iterator[str | None]:
    """The name of the device that computes; None: the current one, of as many threads as are wanted while the block lasts."""
    if args.threads is None:
        yield args.device
        return
    current = current_device() if args.device is None else None
    device = named_device(args.device or (current.backend.name if current else "auto"), threads=args.threads)
    with replace(device, device_bytes=current.device_bytes) if current else device:
        yield None
