"""Files that ooc wrote: operators that become the very layers that they were. What somebody changed is read as in any file."""

from __future__ import annotations

from ooc.networks import layers
from ooc.onnx import elementwise, norms, pooling, resizing, shapes
from ooc.onnx.translator import INTEGERS, OWN, OnnxNode, shortest
from ooc.translate.building import GraphTensor, registering

own = registering(OWN)  # function decorator: it translates these operators of files that ooc wrote
# Modes of a Resize and where its positions lie, and what it was, if it was told sizes.
UPSAMPLED = {("nearest", "asymmetric"): "nearest", ("linear", "half_pixel"): "linear", ("linear", "align_corners"): "aligned"}


@own("BatchNormalization")
def batch_norm(context: OnnxNode) -> GraphTensor:
    """With its momentum, and the activation behind."""
    if context.attribute("training_mode", 0):
        return norms.batch_norm(context)
    values = {name: context.weight(i, name) for i, name in enumerate(("scale", "b", "mean", "var"), 1)}
    momentum = shortest(1 - context.attribute("momentum", 0.9))
    layer = layers.BatchNormLayer(context.attribute("epsilon", 1e-5), momentum, *context.activation())
    return context.layer(context.tensor(), layer, values)


@own("Dropout")
def dropout(context: OnnxNode) -> GraphTensor:
    ratio = context.constant(1, "ratio")
    if ratio is None or context.value(2) is not None:
        return elementwise.identity(context)
    return context.add(context.tensor(), layers.DropoutLayer(shortest(ratio.reshape(()))))


@own("Flatten")
def flatten(context: OnnxNode) -> GraphTensor:
    return context.add(context.tensor(), layers.Flatten()) if context.attribute("axis", 1) == 1 else shapes.reshape(context)


@own("GlobalAveragePool", "GlobalMaxPool")
def global_pool(context: OnnxNode) -> GraphTensor:
    """With the Flatten behind."""
    how = "max" if "Max" in context.op.op_type else "average"
    if (behind := context.behind("Flatten")) is not None:
        context.take_in(behind)
    return context.add(context.tensor(), layers.GlobalPool(how))


@own("ArgMax")
def argmax(context: OnnxNode) -> GraphTensor:
    """With the Cast behind."""
    store = _stored(context, "Cast")
    if store is None:
        return pooling.place_of_extreme(context)
    return context.add(context.tensor(), layers.ArgMaxLayer(store))


@own("Round", "Cast")
def rounded(context: OnnxNode) -> GraphTensor:
    """Numbers that were rounded, in steps, to integers."""
    widened = context.op.op_type == "Cast"
    store = _stored(context, *(["Round"] if widened else []), "Clip", "Cast")
    if store is None:
        return elementwise.cast(context) if widened else elementwise.function(context)
    return context.add(context.tensor(), layers.Round(store))


def _stored(context: OnnxNode, *kinds: str) -> str | None:
    """The integers that a layer of several operators makes, of which this is the first and a Cast the last; they are taken in."""
    translator, nodes = context.translator, [context.op]
    for kind in kinds:
        node = translator.only(nodes[-1].output[0], kind)
        if node is None:
            return None
        nodes.append(node)
    names, store = [node.output[0] for node in nodes[1:]], INTEGERS.get(OnnxNode(translator, nodes[-1]).attribute("to"))
    if store is None or not nodes[0].output[0].startswith(f"{names[-1]}/"):
        return None
    translator.passed.update(names)
    context.taken, context.made = names, names[-1]
    return store


@own("Resize")
def resize(context: OnnxNode) -> GraphTensor:
    """Sizes are those of a layer that resizes by lengths alone; scales those of tables."""
    x, sizes = context.tensor(), context.constant(3, "sizes")
    words = context.attribute("mode"), context.attribute("coordinate_transformation_mode")
    floor = context.attribute("nearest_mode", "floor") == "floor"
    if sizes is None or len(sizes) != len(x.shape) - 2 or words not in UPSAMPLED or not floor:
        return resizing.resize(context)
    return context.add(x, layers.UpsampleLayer(UPSAMPLED[words], tuple(int(size) for size in sizes)))


@own("Reshape")
def reshape(context: OnnxNode) -> GraphTensor:
    """Also one that changes nothing."""
    x, shape = context.tensor(), context.constant(1, "shape")
    if shape is None or shape[0] or min(shape[1:], default=0) < 1:
        return shapes.reshape(context)
    return context.add(x, layers.Reshape(tuple(int(e) for e in shape[1:])))


@own("Pad")
def pad(context: OnnxNode) -> GraphTensor:
    """Zeros around space where no value is named."""
    x, pads = context.tensor(), context.constant(1, "pads")
    rank = len(x.shape)
    bare = len(context.op.input) == 2 and context.attribute("mode", "constant") == "constant"
    if pads is None or not bare or any((*pads[:2], *pads[rank : rank + 2])):
        return shapes.pad(context)
    return context.add(x, layers.Pad(tuple((int(a), int(b)) for a, b in zip(pads[2:rank], pads[rank + 2 :], strict=True))))
