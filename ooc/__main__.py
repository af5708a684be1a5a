"""`python -m ooc COMMAND`: the `ooc` command."""

from __future__ import annotations

import sys

from ooc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
