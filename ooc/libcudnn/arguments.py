"""What the arguments of the calls are: one text for all that share it, put into the docstrings of the calls."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ooc.api.options import WIDTH

# What arguments of a name, or of a call and a name (a regular expression), are: the first that fits. A call's own goes before.
DATA = "memory as its descriptor says: an address (an int or of ctypes), or an array of that type that holds all of it"
UNREAD = "not looked at"
ARGUMENTS = {
    "handle": "of the library, as `create` returns it",
    r"set(\w+Descriptor\w*|Convolution\w+)\.\w+Desc|derivedBnDesc": "as `create...Descriptor` returns it, set or not",
    r"batchNorm\w+Ex\.(zDesc|z|activationDesc|reserveSpace\w*|dzDesc|dz|bnBiasData)|batchNorm\w+BackwardEx\.(yDesc|y)": UNREAD,
    r"getBatchNorm\w+Ex\w+\.(zDesc|dzDesc|activationDesc)|getBatchNorm\w+BackwardEx\w+\.yDesc": UNREAD,
    r"preference|memoryLimitInbytes|queryRuntimeError\.mode|getBatchNorm\w+Reserve\w+\.mode": UNREAD,
    r"find\w+\.(x|w|y|dx|dw|dy)": "not looked at, and left alone",
    r"\w*Desc": "as `create...Descriptor` returns it; one that was never set is refused, unless said otherwise",
    r"alpha\w*|beta\w*": "a float, or the address (an int) of one on the host, for double data of a double",
    "algo": "an int from 0, of those cuDNN has; which one changes nothing",
    r"workSpace\w*": "not looked at: memory is planned within the budget of the current device",
    r"computeType|setConvolution\w+\.dataType":
        "CUDNN_DATA_FLOAT, _DOUBLE, _HALF or _INT32: kept; what is computed in follows from the data",
    "dataType": "CUDNN_DATA_*; FLOAT, DOUBLE, HALF and BFLOAT16 are computed with",
    "format": "CUDNN_TENSOR_NCHW, or CUDNN_TENSOR_NHWC (channels fastest in memory)",
    r"setTensor\w+\.[nchw]": "extents, at least 1",
    r"\w+A": "ints, one per axis: a sequence, or the address of C ints",
    r"setConvolution\w+\.mode": "CUDNN_CROSS_CORRELATION, or CUDNN_CONVOLUTION (filters flipped)",
    r"pad_h|pad_w": "positions added on either side, at least 0",
    r"u|v": "stride along h and w, at least 1",
    r"dilation_h|dilation_w": "positions between taps, at least 1",
    r"setPooling\w+\.mode": "CUDNN_POOLING_*",
    "maxpoolingNanOpt": "CUDNN_NOT_PROPAGATE_NAN or CUDNN_PROPAGATE_NAN; maxima propagate NaN, whatever is asked for",
    r"softmax\w+\.algorithm":
        "CUDNN_SOFTMAX_FAST and CUDNN_SOFTMAX_ACCURATE are the same here, CUDNN_SOFTMAX_LOG is the logarithm",
    r"softmax\w+\.mode":
        "CUDNN_SOFTMAX_MODE_CHANNEL (over the channels), or CUDNN_SOFTMAX_MODE_INSTANCE (over all of each image)",
    r"(getB|b)atchNorm\w+\.mode":
        "CUDNN_BATCHNORM_SPATIAL or CUDNN_BATCHNORM_SPATIAL_PERSISTENT (a value per channel), or CUDNN_BATCHNORM_PER_ACTIVATION",
    "bnOps|bnops": "CUDNN_BATCHNORM_OPS_BN; others are not supported",
    "exponentialAverageFactor": "how far the running mean and (unbiased) variance move towards the batch's, a number",
    r"resultRunning\w+": "memory to be moved, of the statistics' descriptor; null (both): none",
    r"resultSave\w+": "memory for the batch's mean and 1 / sqrt(variance + epsilon); null (both): not saved",
    r"saved\w+": "what the forward call saved; null (both): taken from x",
    "epsilon": "what is added to the variance, at least 0",
    r"dropout\w+\.reserveSpaceSizeInBytes": "its bytes, at least 8",
    "requestedAlgoCount": "an int, at least 1; there is one answer",
    r"\w+(Data|Diff|Result|Bias|Scale|Mean|Variance)|x|y|z|w|b|dx|dy|bias|reserveSpace": DATA,
}  # fmt: skip
REFUSED = """\
 CuDNNError: status 2000 (BAD_PARAM) for what is no handle, descriptor or value as above, or does not fit together, 3000
    (NOT_SUPPORTED) for what cuDNN takes and ooc does not; TypeError for what is no int."""
FAILED = """\
 CuDNNError: status 2000 (BAD_PARAM) for what is no handle, descriptor, memory or value as above, or does not fit together,
    3000 (NOT_SUPPORTED) for what cuDNN takes and ooc or the device does not, 5000 (EXECUTION_FAILED) where computing failed;
    TypeError for what is no int or no memory; ooc.BudgetError where no plan fits the budget; ooc.StoreError where the file of
    a memmap failed."""
HEADS = ("Parameters", "Fields", "Returns", "Raises", "Source")  # the sections of a docstring
ENTRY = re.compile(r"^(\w+(?:, \w+)*): (.+(?:\n +.+)*)\n*", re.MULTILINE)  # such as `n, c: extents`, and what goes on with it
HEAD = re.compile(rf"^({'|'.join(HEADS)}):", re.MULTILINE)


def tell(call: Callable[..., Any]) -> None:
    """Complete the docstring of a call of `ooc.libcudnn`."""
    texts = explained(call, ARGUMENTS)
    raises = (FAILED if DATA in texts else REFUSED) if texts else ""
    name = re.sub(r"(?<!Algorithm)_v\d$", "", call.__name__)
    complete(call, texts, Raises=raises, Source=f" cudnn{name[:1].upper()}{name[1:]}.")


def explained(call: Callable[..., Any], arguments: Mapping[str, str]) -> dict[str, list[str]]:
    """What a call's arguments are, and which have that text, in the order of the call: its docstring's own, then the shared."""
    texts: dict[str, list[str]] = {}
    names = list(inspect.signature(call).parameters)
    for match in _entries(call):
        texts.setdefault(" ".join(match[2].split()).removesuffix("."), []).extend(match[1].split(", "))
    told = {name for group in texts.values() for name in group}
    for name in (name for name in names if name not in told):
        text = next((text for pattern, text in arguments.items() if _pattern(pattern).fullmatch(f"{call.__name__}.{name}")), None)
        if text:
            texts.setdefault(text, []).append(name)
    return dict(sorted(texts.items(), key=lambda item: names.index(item[1][0])))


def complete(call: Callable[..., Any], texts: Mapping[str, list[str]], before: str = "", **sections: str) -> None:
    """Put what all arguments are into a docstring, a paragraph before them, and sections that it has not, by their heads."""
    if not call.__doc__:  # there is none under python -OO
        return
    docstring = inspect.cleandoc(call.__doc__)
    for match in reversed(_entries(call)):
        docstring = docstring[: match.start()] + docstring[match.end() :]
    summary, *more = HEAD.split(docstring)
    lines = [_wrapped(f"{', '.join(names)}: {text}.") for text, names in texts.items()]
    sections |= {"Parameters": "\n".join(["", *lines]) if lines else "", **dict(zip(more[::2], more[1::2], strict=True))}
    parts = [f"{head}:{sections[head].rstrip()}" for head in HEADS if sections.get(head)]
    call.__doc__ = "\n\n".join(filter(None, [summary.strip(), before, *parts]))


def _entries(call: Callable[..., Any]) -> list[re.Match[str]]:
    """Where a call's docstring says itself what arguments are."""
    names = inspect.signature(call).parameters.keys()
    return [m for m in ENTRY.finditer(inspect.cleandoc(call.__doc__ or "")) if names >= {*m[1].split(", ")}]


@cache
def _pattern(argument: str) -> re.Pattern[str]:
    return re.compile(rf"(?:\w+\.)?(?:{argument})")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
