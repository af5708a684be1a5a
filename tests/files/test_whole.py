"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ooc import StoreError
from ooc.files.whole import holds_only, incomplete, sweep, whole

WRITES = """
import sys
from pathlib import Path
from ooc.files.whole import whole
with whole(Path(sys.argv[1])) as file:
    file.write(b"new")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def test_it_takes_its_place_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with whole(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), whole(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


def test_only_what_was_left_is_swept(tmp_path: Path) -> None:
    """By another process that was killed, not what one still writes, and nothing that is named otherwise."""
    path, others = tmp_path / "a", ["a.part", "a.particles", "a.part0123abcd.txt", ".part0123abcd", "b.part0123abcx"]
    for other in others:
        (tmp_path / other).touch()
    with subprocess.Popen([sys.executable, "-c", WRITES, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"written\n"
        sweep(tmp_path)
        (part,) = set(os.listdir(tmp_path)) - set(others)
        assert incomplete(part) == "a" and holds_only(tmp_path, {"a", *others})
        with whole(path) as file:  # at the same time
            sweep(tmp_path)
            file.write(b"mine")
        process.send_signal(signal.SIGKILL)
    sweep(tmp_path, "b")
    assert (tmp_path / part).exists()
    sweep(tmp_path, "a")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "a"]) and path.read_bytes() == b"mine"
    sweep(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_swept_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.part0123abcd").touch()
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: os.rmdir(self))
    with pytest.raises(StoreError, match=str(tmp_path)):
        sweep(tmp_path)
