"""Files that are damaged or hostile, read by a process that is watched: no crash, no hang, no more memory than a limit, nothing
outside touched, and errors of one line.

    python tests/hostile/fuzz.py --mutants 2000 --rows fuzz.jsonl
    python tests/hostile/fuzz.py --bombs

What a mutant is follows from the seed and its number; `--only zarr --number 17 --keep folder` makes one again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parent))

from bombs import BOMBS
from mutations import mutate
from subjects import SUBJECTS

Row = dict[str, Any]
HANG, LATE, MEMORY = 600, 1.0, 1 << 30  # seconds; seconds that an error may take; bytes beside what the process had
LINE = 300  # characters of a message
SECRET = "outside/secret.npy"
OUTSIDE = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "shutil.rmtree")


# ---- the process that reads


def child() -> None:
    """Read what standard input names, line by line, and tell on standard output what came of it."""
    from ooc import OocError

    faulthandler.enable()
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    touched: list[str] = []
    room = [Path("/nowhere")]
    sys.addaudithook(lambda event, given: watch(event, given, room[0], touched))
    for line in sys.stdin:
        asked = json.loads(line)
        room[0] = Path(asked["room"])
        os.chdir(room[0] / "case")
        tempfile.tempdir = os.environ["TMPDIR"] = str(room[0] / "tmp")
        read = (
            partial(SUBJECTS[asked["subject"]].read, room[0] / "case")
            if "subject" in asked
            else BOMBS[asked["bomb"]](room[0] / "case")
        )
        touched.clear()
        base, began = peak(reset=True), time.perf_counter()
        signal.alarm(HANG)
        faulthandler.dump_traceback_later(HANG - 2)
        try:
            read()
            came, message = "read", ""
        except OocError as error:
            came, message = type(error).__name__, str(error)
        except BaseException as error:
            came, message = f"untyped {type(error).__name__}", "".join(traceback.format_exception(error))[-3000:]
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        seconds = time.perf_counter() - began
        answer = {"came": came, "message": message, "seconds": seconds, "bytes": peak() - base, "touched": touched}
        print(json.dumps(answer), file=told, flush=True)


def watch(event: str, given: tuple[Any, ...], room: Path, touched: list[str]) -> None:
    """Note what is written outside the room of a case, and whatever is opened of what lies beside it."""
    if event not in OUTSIDE or not given or not isinstance(given[0], (str, bytes, os.PathLike)):
        return
    path = os.path.realpath(os.fsdecode(given[0]))
    writes = event != "open" or (isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    inside = path.startswith((f"{room}/case", f"{room}/tmp", "/dev/", "/proc/"))
    if not inside and (writes or path.startswith(str(room)) or path == "/etc/passwd"):
        touched.append(f"{event} {path}")


def peak(reset: bool = False) -> int:
    """Bytes of memory at the most since the last reset; after a reset, those that are held now."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


# ---- the process that watches


class Reader:
    """A process that reads, made anew where it ended."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  until close

    def read(self, room: Path, **what: str) -> Row:
        """What came of the files of a subject, or of a bomb."""
        if self.process is None:
            self.errors.seek(0)
            self.errors.truncate()
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({**what, "room": str(room)}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if line:
            return dict(json.loads(line))
        code = self.process.wait()
        self.process = None
        self.errors.seek(0)
        return {
            "came": "hang" if code == -signal.SIGALRM else f"crash {code}",
            "message": self.errors.read()[-3000:],
            "seconds": 0.0,
            "bytes": 0,
            "touched": [],
        }

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()
        self.errors.close()


def order(mutants: int, only: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The kinds of cases, each as often as its share, with numbers that go on."""
    names = [name for name, subject in SUBJECTS.items() if name in only for _ in range(subject.share)]
    counts: Counter[str] = Counter()
    for i in range(mutants):
        name = names[i % len(names)]
        yield name, counts[name]
        counts[name] += 1


def case(room: Path, seeds: Path, subject: str, seed: int, number: int) -> None:
    """A room with the files of a case, one or two of them changed, and something beside them that is nobody's business."""
    shutil.rmtree(room, ignore_errors=True)
    shutil.copytree(seeds / subject, room / "case")
    (room / "tmp").mkdir()
    (room / SECRET).parent.mkdir()
    shutil.copyfile(Path(seeds) / "npy/x.npy", room / SECRET)
    rng = random.Random(f"{seed} {subject} {number}")
    files = sorted(p for p in (room / "case").glob(SUBJECTS[subject].changes) if p.is_file())
    for path in rng.sample(files, min(len(files), rng.choice((1, 1, 1, 2)))):
        mutate(rng, path)


def wrong(row: Row, room: Path) -> str:
    """What is not as it must be; "": all is."""
    came, lines = row["came"], row["message"].splitlines()
    left = [p.name for p in (room / "tmp").iterdir()]
    faults = {
        came: came.startswith(("untyped", "crash", "hang")),
        "more than a line": came.endswith("Error") and (len(lines) != 1 or len(lines[0]) > LINE),
        f"{row['seconds']:.1f} s": came.endswith("Error") and row["seconds"] > LATE,
        f"{row['bytes'] >> 20} MiB": row["bytes"] > MEMORY,
        f"touched {row['touched']}": bool(row["touched"]),
        f"left {left}": bool(left),
        "changed what is outside": not (room / SECRET).is_file(),
    }
    return "; ".join(name for name, found in faults.items() if found)


def fuzz(mutants: int, only: Sequence[str], seed: int = 0, first: int = 0, room: Path | None = None) -> Iterator[Row]:
    """Mutants, and what came of each."""
    with tempfile.TemporaryDirectory() as folder:
        seeds, own = Path(folder) / "seeds", room or Path(folder) / "room"
        own = own.resolve()
        for name in {*only, "npy"}:  # at the place where they are read: journals know it
            (own / "case").mkdir(parents=True)
            SUBJECTS[name].make(own / "case")
            shutil.copytree(own / "case", seeds / name)
            shutil.rmtree(own)
        reader = Reader()
        try:
            for name, number in order(mutants, only):
                case(own, seeds, name, seed, number + first)
                row = reader.read(own, subject=name)
                yield {"subject": name, "number": number + first, **row, "wrong": wrong(row, own)}
        finally:
            reader.close()


def explode() -> Iterator[Row]:
    """Every bomb, and what came of it. All must be refused."""
    reader = Reader()
    try:
        for name in BOMBS:
            with tempfile.TemporaryDirectory() as folder:
                room = Path(folder).resolve()
                for part in ("case", "tmp", "outside"):
                    (room / part).mkdir()
                (room / SECRET).write_bytes(b"secret" * 100)
                row = reader.read(room, bomb=name)
                found = wrong(row, room) or ("was read" if row["came"] == "read" else "")
                yield {"subject": name.partition(":")[0], "bomb": name, **row, "wrong": found}
    finally:
        reader.close()


def table(rows: Sequence[Row]) -> str:
    """What came of all, a line for each kind."""
    lines = ["| files | tried | read | refused | slowest, s | most, MiB | wrong |", "|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["subject"] for row in rows):
        own = [row for row in rows if row["subject"] == name]
        read = sum(row["came"] == "read" for row in own)
        refused = Counter(row["came"] for row in own if row["came"].endswith("Error") and not row["came"].startswith("untyped"))
        told = ", ".join(f"{count} {kind}" for kind, count in refused.most_common())
        slowest, most = max(row["seconds"] for row in own), max(row["bytes"] for row in own) / (1 << 20)
        lines.append(
            f"| {name} | {len(own)} | {read} | {told} | {slowest:.1f} | {most:.0f} | {sum(bool(r['wrong']) for r in own)} |"
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--only", default=",".join(SUBJECTS), help="kinds of files, by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, help="of the one mutant that is made, with --only")
    parser.add_argument("--bombs", action="store_true", help="files that are built to hurt, in the place of mutants")
    parser.add_argument("--keep", type=Path, help="folder in which the last mutant stays")
    parser.add_argument("--rows", type=Path, help="file of JSON lines to which rows are added")
    asked = parser.parse_args(given)
    rows = []
    count, first = (asked.mutants, 0) if asked.number is None else (1, asked.number)
    for row in explode() if asked.bombs else fuzz(count, asked.only.split(","), asked.seed, first, asked.keep):
        rows.append(row)
        if row["wrong"] or asked.number is not None:
            print(
                f"{row.get('bomb') or row['subject']} {row.get('number', '')}: {row['wrong'] or row['came']}\n{row['message']}",
                flush=True,
            )
        if asked.rows:
            with asked.rows.open("a") as file:
                file.write(json.dumps({"seed": asked.seed, **row}) + "\n")
    print(table(rows))
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        child()
    else:
        sys.exit(main())
