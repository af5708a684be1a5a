"""Plans, peaks and errors are those that the files beside this one have; a part here, all of them in the long suite."""

from __future__ import annotations

from typing import Any

import pytest

from ooc import native
from tests.golden import golden

SHARES = {"plans.jsonl": 10, "networks.jsonl": 12, "errors.jsonl": 1}


def told(row: dict[str, Any], where: str, found: Any) -> str:
    problem = {name: value for name, value in row.items() if name not in golden.DEVICES}
    return f"{problem}\n{where}: {row.get(where)}\nnow: {found}"


@pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param(name, share, marks=pytest.mark.slow if share else ())
        for name, shares in SHARES.items()
        for share in range(shares)
    ],
)
def test_they_are_as_they_were(name: str, share: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.kernels is None:
        pytest.skip("plans for a processor take its kernels")
    monkeypatch.chdir(tmp_path)
    rows = golden.rows_of(name)[share :: SHARES[name]]
    assert len(rows) >= 5
    differing = [told(*change) for change in golden.changes(name, rows)]
    assert not differing, "\n\n".join(differing[:5])


def test_the_files_have_what_they_should() -> None:
    rows = {name: golden.rows_of(name) for name in golden.FILES}
    assert len(rows["plans.jsonl"]) == 400 and len(rows["networks.jsonl"]) == 60 and len(rows["errors.jsonl"]) >= 200
    for name, lines in rows.items():
        assert all(where in row for row in lines for where in golden.FILES[name][1])
