"""All that needs a GPU, in one run: `run.py` is the entry."""
