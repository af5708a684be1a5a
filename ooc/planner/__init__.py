"""Choosing a plan: `planner.py` is the entry, `search.py` chooses tiles for one op, `cutting.py` where to cut a fused one."""
