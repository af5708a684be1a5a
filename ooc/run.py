"""`python -m ooc.run program.py`: runs an unedited program with `ooc.cudnn` under the names that CuPy removed."""

from __future__ import annotations

import sys

from ooc.cupy_compat import main

if __name__ == "__main__":
    sys.exit(main())
