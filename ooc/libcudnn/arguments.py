"""What the arguments of the calls are: one text for all that share a name, put behind the docstrings of the calls."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from ooc.api.options import WIDTH, entries

# What arguments of a name (a regular expression) are; a call's own docstring goes before.
DATA = "memory as its descriptor says: an address (an int or of ctypes), or an array of that type that holds all of it"
ARGUMENTS = {
    "handle": "of the library, as `create` returns it",
    r"\w*Desc": "as `create...Descriptor` returns it; one that was never set is refused, unless said otherwise",
    r"alpha\w*|beta\w*": "a float, or the address (an int) of one on the host, for double data of a double",
    "algo": "an int from 0, of those cuDNN has; which one changes nothing",
    r"workSpace\w*": "not looked at: memory is planned within the budget of the current device",
    "dataType": "CUDNN_DATA_*; FLOAT, DOUBLE, HALF and BFLOAT16 are computed with",
    r"\w+A": "ints, one per axis: a sequence, or the address of C ints",
    "epsilon": "what is added to the variance, at least 0",
    "requestedAlgoCount": "an int, at least 1; there is one answer",
    r"\w+(Data|Diff|Result|Bias|Scale|Mean|Variance)|x|y|z|w|b|dx|dy|bias|reserveSpace": DATA,
}  # fmt: skip
REFUSED = """\
Raises: CuDNNError: status 2000 (BAD_PARAM) for what is no handle, descriptor or value as above, or does not fit together, 3000
(NOT_SUPPORTED) for what cuDNN takes and ooc does not; TypeError for what is no int."""
FAILED = """\
Raises: CuDNNError: status 2000 (BAD_PARAM) for what is no handle, descriptor, memory or value as above, or does not fit
together, 3000 (NOT_SUPPORTED) for what cuDNN takes and ooc or the device does not, 5000 (EXECUTION_FAILED) where computing
failed; TypeError for what is no int or no memory; ooc.BudgetError where no plan fits the budget; ooc.StoreError where the
file of a memmap failed."""


def tell(call: Callable[..., Any]) -> None:
    """Put behind a call's docstring what it does not say of its arguments, and what it raises."""
    if not call.__doc__:  # there is none under python -OO
        return
    docstring = inspect.cleandoc(call.__doc__)
    names = list(inspect.signature(call).parameters)
    texts: dict[str, list[str]] = {}
    for name in names:
        text = next((text for pattern, text in ARGUMENTS.items() if re.fullmatch(pattern, name)), None)
        if text and name not in entries(docstring):
            texts.setdefault(text, []).append(name)
    shared = [_wrapped(f"{', '.join(arguments)}: {text}.") for text, arguments in texts.items()]
    errors = [_wrapped(FAILED if DATA in texts else REFUSED)] if names else []
    call.__doc__ = "\n\n".join(filter(None, [docstring, "\n".join(shared), *errors]))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
