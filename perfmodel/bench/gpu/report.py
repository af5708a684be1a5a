"""A pytest plugin: a line of JSON per test, added to the file OOC_GPU_ROWS as soon as the test is over; the names of the tests
that were collected, a line each, in the file OOC_GPU_NAMES."""

from __future__ import annotations

import json
import os
from typing import Any

MOST_TEXT = 4000  # characters of a failure


def pytest_runtest_logreport(report: Any) -> None:
    """The test itself, and what went wrong or was skipped before or after it."""
    path = os.environ.get("OOC_GPU_ROWS")
    if not path or (report.when != "call" and report.outcome == "passed"):
        return
    row: dict[str, Any] = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 4)}
    if report.outcome != "passed":
        row["text"] = str(report.longrepr)[-MOST_TEXT:]
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\n")


def pytest_collection_finish(session: Any) -> None:
    """What pytest prints of a collection depends on the project's options; this does not."""
    path = os.environ.get("OOC_GPU_NAMES")
    if path:
        with open(path, "w") as file:
            file.writelines(f"{item.nodeid}\n" for item in session.items)
