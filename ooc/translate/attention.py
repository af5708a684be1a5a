"""Products of what networks compute, and attention, as other libraries write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ooc.networks import layers
from ooc.translate.binary import as_tensor, expanded
from ooc.translate.building import Bias, Building, Constant, GraphTensor, Operand, Scores, Shape, floating
from ooc.translate.elementwise import add, affine, reciprocal, softmax
from ooc.translate.products import linear
from ooc.translate.tensors import BATCH, MOST_AXES
from ooc.translate.views import Arrangement, Changed, broadcast, exchanged, in_matrices, permuted, reshaped, viewed, with_an_axis

MOST_BIASES = 2  # that attention takes: of heads and of windows, say


def matmul(b: Building, x: Operand, z: Operand, alpha: float = 1.0, last: bool = True) -> GraphTensor:
    """alpha * x z over the last two axes, one of them a tensor; axes in front are repeated where they are 1."""
    if isinstance(x, GraphTensor) and isinstance(z, Constant) and len(z.shape) == 2 and alpha == 1:
        return linear(b, multiplied(b, x), transposed(z), None, last)
    if isinstance(z, GraphTensor) and isinstance(x, Constant) and len(x.shape) == 2 and alpha == 1:
        return turned(b, linear(b, turned(b, multiplied(b, z), last=False), x, None, last=False), last)
    if isinstance(x, Constant) or isinstance(z, Constant):
        x, z = (one if isinstance(one, Constant) else multiplied(b, one) for one in (x, z))
    like = x if isinstance(x, GraphTensor) else z
    assert isinstance(like, GraphTensor)
    x, z = (one if isinstance(one, GraphTensor) else _as_matrices(b, one, like) for one in (x, z))
    return product(b, x, z, alpha, last)


def _as_matrices(b: Building, values: Constant, like: GraphTensor) -> GraphTensor:
    """A constant as a tensor that has as many heads as one beside it."""
    view, rank = b.site.view(like), len(like.shape)
    if view.in_front:
        return as_tensor(b, values, like)
    have = (1,) * (rank - len(values.shape)) + values.shape
    if len(have) > rank or rank < 3 or have[view.batch_axis] > 1:
        raise b.refuse(f"a constant of shape {values.shape} beside a tensor of shape {like.shape}")
    of_heads = tuple(i for axis in range(rank - 2) for i in view.beside_batch(axis))
    y = _of_heads(b, values.reshaped(have), like, whole=True)
    rows, columns = Changed(1, rank - 2, have[-2]), Changed(2, rank - 1, have[-1])
    return Arrangement(b, like, (of_heads, (), ())).back(y, rows, columns, last=False)


def _of_heads(b: Building, values: Constant, like: GraphTensor, whole: bool) -> GraphTensor:
    """A constant with rows and columns behind the heads of a tensor, as heads x rows x columns, the same for each sample. whole:
    of all heads, even where it is the same for each."""
    view, rank = b.site.view(like), len(like.shape)
    heads, matrix = tuple(view.extent(view.beside_batch(axis)) for axis in range(rank - 2)), values.shape[-2:]
    kept = (*(h if e > 1 else 1 for e, h in zip(values.shape, heads, strict=False)), *matrix)
    size = (*(heads if whole or math.prod(kept[:-2]) > 1 else (1,) * len(heads)), *matrix)
    value, joined = values.reshaped(kept).through(floating), (math.prod(size[:-2]), *matrix)
    if math.prod(kept[:-2]) == 1:
        kept, size, value = (1, *matrix), joined, value.reshaped((1, *matrix))
    elif kept == size or len(size) >= MOST_AXES:  # more axes than a layer repeats along: it is repeated here
        repeated = size
        value = value.through(lambda held: broadcast(held, repeated), repeated).reshaped(joined)
        kept = size = joined
    y = b.layer((), layers.ParameterLayer(kept, size, like.dtype), {"value": value}, last=False)
    return y if size == joined else b.add(y, layers.Reshape(joined), last=False)


def transposed(values: Constant) -> Constant:
    """The last two axes of a constant exchanged."""
    return values.through(lambda held: held.swapaxes(-1, -2), (*values.shape[:-2], *values.shape[:-3:-1]))


def turned(b: Building, x: GraphTensor, last: bool = True) -> GraphTensor:
    """The last two axes exchanged."""
    rank = len(x.shape)
    return permuted(b, x, (*range(rank - 2), rank - 1, rank - 2), last)


def product(b: Building, x: GraphTensor, z: GraphTensor, alpha: float = 1.0, last: bool = True) -> GraphTensor:
    """alpha * x z of two tensors, which waits for its reader; of weights that wait, attention."""
    weights = b.site.scores.get(x.name)
    if weights is not None and weights.soft and alpha == 1:
        return attended(b, weights.x, turned(b, weights.z, last=False), multiplied(b, z), weights.biases, weights.alpha)
    x, z = multiplied(b, x), multiplied(b, z)
    heads = _heads(x.shape, z.shape)
    if heads is None:
        raise b.refuse(f"products of tensors of shapes {x.shape} and {z.shape}", "both have the same axes in front, or ones")
    x, z = (expanded(b, t, (*heads, *t.shape[-2:]), last=False) for t in (x, z))
    axes = {b.site.view(t).batch_axis for t in (x, z)}
    if len(axes) > 1 or max(axes) > len(heads) - 1:
        raise b.refuse(f"products of tensors of shapes {x.shape} and {z.shape}", "the batch is in front of rows and columns")
    return _waiting(b, Scores(x, z, alpha), last)


def _waiting(b: Building, scores: Scores, last: bool = True) -> GraphTensor:
    name = b.made if last and b.site.free(b.made) else f"product {len(b.site.scores) + 1} of {b.made}"
    b.site.scores[name] = scores
    return GraphTensor(name, (*scores.x.shape[:-1], scores.z.shape[-1]), b.site.view(scores.x).source.dtype)


def multiplied(b: Building, x: GraphTensor) -> GraphTensor:
    """A tensor, made now if it waits."""
    scores = b.site.scores.get(x.name)
    if scores is None:
        return x
    if x.name not in b.site.multiplied:
        y = _product_of(b, scores, x.name)
        for bias in scores.biases:
            y = add(b, reshaped(b, y, (*bias.rows.shape[:-1], x.shape[-1]), last=False), bias.added, last=False)
        y = reshaped(b, y, x.shape, last=False)
        b.site.multiplied[x.name] = softmax(b, y, len(y.shape) - 1, "plain", last=False) if scores.soft else y
    return b.site.multiplied[x.name]


def _product_of(b: Building, scores: Scores, name: str) -> GraphTensor:
    left, right = in_matrices(b, scores.x), in_matrices(b, scores.z)
    if left.turned and right.turned:  # one of them must lie as it is seen
        right = in_matrices(b, scores.z, may_turn=False)
    how = "tn" if left.turned else "nt" if right.turned else "nn"
    y = b.add(
        (left.tensor, right.tensor), layers.MatMulLayer(how, scores.alpha), last=False, name=name if _plain(b, scores.x) else ""
    )
    return left.plain.back(y, Changed(2, len(scores.x.shape) - 1, scores.z.shape[-1]), last=False)


def _plain(b: Building, x: GraphTensor) -> bool:
    """Whether what has the heads and rows of a tensor is seen as the graph has it."""
    return x.name not in b.site.views and len(x.shape) == 4


def scaled(b: Building, x: Operand, by: Operand, divided: bool = False) -> GraphTensor | None:
    """Scores that wait times what is the same for all of a head, or divided by it; None: neither is so."""
    if isinstance(x, Constant) and not divided:
        x, by = by, x
    scores = b.site.scores.get(x.name) if isinstance(x, GraphTensor) else None
    if scores is None or not isinstance(by, Constant) or by.number == 0 or scores.biases or scores.soft:
        return None
    if by.number is None:
        return _scaled_rows(b, scores, by.through(reciprocal) if divided else by)
    return _waiting(b, scores._replace(alpha=scores.alpha / by.number if divided else scores.alpha * by.number))


def _scaled_rows(b: Building, scores: Scores, by: Constant) -> GraphTensor | None:
    """Scores of rows that are multiplied by a number for each head; None: it is none, or rows are longer than the scores."""
    x, rank = scores.x, len(scores.x.shape)
    have = (1,) * (rank - len(by.shape)) + by.shape
    of_heads = len(have) == rank and have[-2:] == (1, 1) and have[b.site.view(x).batch_axis] == 1
    if not of_heads or x.shape[-1] > scores.z.shape[-1]:
        return None
    return _waiting(b, scores._replace(x=affine(b, x, "scale", by.reshaped(have), last=False)))


def biased(b: Building, x: Operand, bias: Operand) -> GraphTensor | None:
    """The sum of scores that wait and something; None: there are none, or it has another shape."""
    if not (isinstance(x, GraphTensor) and x.name in b.site.scores):
        x, bias = bias, x
    scores = b.site.scores.get(x.name) if isinstance(x, GraphTensor) else None
    if scores is None or len(scores.biases) == MOST_BIASES or scores.soft or len(bias.shape) > len(x.shape):
        return None
    have = (1,) * (len(x.shape) - len(bias.shape)) + bias.shape
    if any(e not in (1, f) for e, f in zip(have, x.shape, strict=True)):
        return None
    added = bias if isinstance(bias, Constant) else multiplied(b, bias)
    return _waiting(b, scores._replace(biases=(*scores.biases, Bias(added, scores.x))))


def apart(b: Building, x: GraphTensor, shape: Shape) -> GraphTensor | None:
    """Scores that wait, with the axes in front of rows and columns split or joined; None: there are none, or others change."""
    scores = b.site.scores.get(x.name)
    if scores is None or shape[-2:] != x.shape[-2:] or math.prod(shape) != math.prod(x.shape):
        return None
    views = [b.site.view(t).split((*shape[:-2], *t.shape[-2:])) for t in (scores.x, scores.z)]
    if any(view is None or view.batch_axis > len(shape) - 3 for view in views):
        return None
    rows, columns = (viewed(b, view, last=False) for view in views if view is not None)
    return _waiting(b, scores._replace(x=rows, z=columns))


def softened(b: Building, x: GraphTensor, axis: int) -> GraphTensor | None:
    """The softmax of scores that wait; None: they are none, or it is over another axis."""
    scores = b.site.scores.get(x.name)
    if scores is None or scores.soft or axis % len(x.shape) != len(x.shape) - 1:
        return None
    return _waiting(b, scores._replace(soft=True))


def _heads(x: Shape, z: Shape) -> Shape | None:
    """The axes in front of rows and columns of both; None: they do not go together."""
    fits = len(x) == len(z) > 2 and x[-1] == z[-2]
    pairs = [*zip(x[:-2], z[:-2], strict=True)] if fits else []
    return tuple(map(max, pairs)) if pairs and all(1 in (e, f) or e == f for e, f in pairs) else None


def attended(
    b: Building, q: GraphTensor, k: GraphTensor, v: GraphTensor, biases: Sequence[Bias], scale: float | None
) -> GraphTensor:
    """softmax(scale * q k^T + biases) v. Source: Vaswani et al., "Attention is all you need", NIPS 2017."""
    rank, heads = len(q.shape), _heads(q.shape, (*k.shape[:-2], *k.shape[:-3:-1]))
    if heads is None or len(v.shape) != rank or v.shape[-2] != k.shape[-2]:
        raise b.refuse(f"attention of shapes {q.shape}, {k.shape} and {v.shape}", "all have the same axes in front, or ones")
    q, k, v = (expanded(b, t, (*heads, *t.shape[-2:]), last=False) for t in (q, k, v))
    laid = [in_matrices(b, t, may_turn=False) for t in (q, k, v)]
    if len({one.plain.view.batch_axis for one in laid}) > 1 or laid[0].plain.view.batch_axis > rank - 3:
        raise b.refuse(f"attention of shapes {q.shape}, {k.shape} and {v.shape}", "the batch is in front of rows and columns")
    by, plain = 1 / math.sqrt(q.shape[-1]) if scale is None else scale, _plain(b, q)
    groups, letters, added = _biases(b, biases, k.shape[-2])
    y = b.add([*(one.tensor for one in laid), *added], layers.AttentionLayer(by, groups, letters), last=plain)
    return y if plain else laid[0].plain.back(y, Changed(2, rank - 1, v.shape[-1]))


def _biases(b: Building, biases: Sequence[Bias], keys: int) -> tuple[int, tuple[str, ...], list[GraphTensor]]:
    """In how many groups heads come, and of each bias its axes as letters, and itself; see AttentionLayer."""
    splits = [_split(b, bias, keys) for bias in biases]
    groups = next((some for some, _ in splits if some > 1), 1)
    letters, tensors = [], []
    for bias, (some, heads) in zip(biases, splits, strict=True):
        shape = (*bias.rows.shape[:-1], keys)
        tensors.append(_bias(b, bias.added, bias.rows, shape, alone=some == groups > 1))
        _, full, h, w = tensors[-1].shape
        heads = heads if some == groups > 1 else "gk" * (full > 1)
        letters.append(heads + "h" * (h > 1) + "w" * (w > 1))
    return groups, tuple(letters) if groups > 1 else (), tensors


def _split(b: Building, bias: Bias, keys: int) -> tuple[int, str]:
    """Where a constant is the same for each group of heads, or for all heads of a group: how many groups there are, and the
    letter of that axis along which it is full. Else one group."""
    view, rank = b.site.view(bias.rows), len(bias.rows.shape)
    have = (1,) * (rank - len(bias.added.shape)) + bias.added.shape
    heads = [(view.extent(view.beside_batch(axis)), have[axis] > 1) for axis in range(rank - 2)]
    heads = [(extent, full) for extent, full in heads if extent > 1]
    if not isinstance(bias.added, Constant) or (have[view.batch_axis] > 1 and view.factors[BATCH] > 1):
        return 1, ""
    if len({full for _, full in heads}) < 2 or sum(a[1] != z[1] for a, z in pairwise(heads)) > 1:
        return 1, ""
    outer = heads[0][1]
    return math.prod(extent for extent, full in heads if full == outer), "g" if outer else "k"


def _bias(b: Building, mask: Operand, q: GraphTensor, shape: Shape, alone: bool) -> GraphTensor:
    """What is added to scores of a shape, as heads x queries x keys, or 1 where it is repeated. alone: of a constant those heads
    that it has."""
    rank, view = len(shape), b.site.view(q)
    have = (1,) * (rank - len(mask.shape)) + mask.shape
    if len(have) > rank or any(e not in (1, f) for e, f in zip(have, shape, strict=True)):
        raise b.refuse(f"a mask of shape {mask.shape} for scores of shape {shape}")
    if isinstance(mask, GraphTensor):
        whole = reshaped(b, mask, have, last=False)
        of_heads = have[:-2] == shape[:-2]
        if not of_heads and math.prod(have[:-2]) != view.factors[BATCH]:
            whole = expanded(b, whole, (*shape[:-2], *have[-2:]), last=False)
        return in_matrices(b, whole, may_turn=False).tensor
    if have[view.batch_axis] > 1 and view.factors[BATCH] > 1:
        if not view.in_front:
            raise b.refuse(f"a mask of shape {mask.shape} for scores of shape {shape}", "it is the same for each sample")
        return _bias(b, b.for_each_sample(view.source._replace(shape=shape), mask.reshaped(have)), q, shape, alone)
    heads = tuple(view.extent(view.beside_batch(axis)) for axis in range(rank - 2))
    key = mask.value, have, heads, alone, q.dtype  # masks of windows are large, and the same in many layers
    if key not in b.site.shared:
        if alone:
            value = mask.through(floating).reshaped((math.prod(have[:-2]), *have[-2:]))
            layer = layers.ParameterLayer(value.shape, value.shape, q.dtype)
            b.site.shared[key] = b.layer((), layer, {"value": value}, last=False)
        else:
            b.site.shared[key] = _of_heads(b, mask.reshaped(have), q, whole=False)
    return b.site.shared[key]


def returned(b: Building, x: GraphTensor) -> GraphTensor:
    """A result as a tensor of the graph: a product is computed, one number of each sample has a channel."""
    return b.settled(with_an_axis(b, multiplied(b, x)))


def einsum(b: Building, equation: str, operands: Sequence[Operand], last: bool = True) -> GraphTensor:
    """A product of two, or of several from the left: letters say what is multiplied and summed. Raises UnsupportedError for sums
    over one of them alone."""
    inputs, _, output = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    while 2 < len(operands) == len(names) and any(isinstance(one, GraphTensor) for one in operands[:2]):
        kept = "".join(c for c in dict.fromkeys("".join(names[:2])) if c in "".join(names[2:]) + output)
        operands = [einsum(b, f"{names[0]},{names[1]}->{kept}", operands[:2], last=False), *operands[2:]]
        names = [kept, *names[2:]]
    if len(operands) != 2 or len(names) != 2 or not output or any(len(set(n)) != len(n) for n in (*names, output)):
        raise b.refuse(f"einsum {equation}", "ooc multiplies two tensors, with no axis twice in one")
    (x, z), (one, other) = operands, names
    summed = [c for c in one if c in other and c not in output]
    both = [c for c in output if (c in one and c in other) or c in _of_batch(b, x, one, z) or c in _of_batch(b, z, other, x)]
    rows, columns = ([c for c in output if c in mine and c not in theirs] for mine, theirs in ((one, other), (other, one)))
    rows, columns = ([c for c in some if c not in both] for some in (rows, columns))
    if len(both) + len(rows) + len(columns) != len(output) or set(one) | set(other) != {*output, *summed}:
        raise b.refuse(f"einsum {equation}", "every letter is of the result, or of both")
    sizes = dict(zip(one + other, (*x.shape, *z.shape), strict=True))
    left = _ordered(b, x, one, both, rows, summed)
    right = _ordered(b, z, other, both, summed, columns)
    order = [*both, *rows, *columns]
    y = matmul(b, left, right, last=False)
    if y.shape == tuple(sizes[c] for c in order) and order == [*output]:
        return y
    y = reshaped(b, multiplied(b, y), tuple(sizes[c] for c in order), last=False)
    return permuted(b, y, [order.index(c) for c in output], last)


def _of_batch(b: Building, x: Operand, letters: str, other: Operand) -> str:
    """The letter of the batch, beside a constant that has none."""
    return letters[b.site.view(x).batch_axis] if isinstance(x, GraphTensor) and isinstance(other, Constant) else ""


def _ordered(b: Building, x: Operand, letters: str, *groups: list[str]) -> Operand:
    """An operand of einsum with its axes in front as they are, and the others as rows and columns."""
    order = [letters.index(c) for group in groups for c in group if c in letters]
    front, *matrix = groups
    sizes = dict(zip(letters, x.shape, strict=True))
    shape = (*(sizes.get(c, 1) for c in front), *(math.prod(sizes[c] for c in group) for group in matrix))
    if isinstance(x, Constant):
        return x.through(lambda held: exchanged(held, order), tuple(x.shape[i] for i in order)).reshaped(shape)
    return reshaped(b, permuted(b, x, order, last=False), shape, last=False)
