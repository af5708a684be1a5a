"""The `ooc` command: `main.py` is the entry, each subcommand an entry of a table."""
