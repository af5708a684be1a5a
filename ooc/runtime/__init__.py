"""From an op and arrays to results: `engine.py` is the entry, `executor.py` walks the steps, `report.py` says what happened."""
