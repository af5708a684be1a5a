"""A plan as data, and its lowering: `plan.py`, `steps.py` (emit, link, races), `arena.py` (where buffers lie)."""
