"""A network as its user builds it: layers on named tensors, shapes per sample."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ooc.api.arguments import BORDERS, Padding, PerAxis, as_float, as_floats, as_int, as_pads, pads_of_conv, per_axis
from ooc.api.layers import Activation, act_of, bordered
from ooc.errors import ArgumentError, shown
from ooc.networks import layers
from ooc.networks.arrange import ArrangingGraph
from ooc.runtime.call_options import flag


class Built(ArrangingGraph):
    """A graph with a method for each layer: what `ooc.Graph` is before it is planned."""

    def conv(
        self, x: str, k: int, taps: PerAxis, *, stride: PerAxis = 1, padding: Padding = 0, dilation: PerAxis = 1,
        groups: int = 1, bias: bool = False, activation: str | Activation | None = None, name: str | None = None,
    ) -> str:  # fmt: skip
        """y = activation(conv(x, w) + b), as `ooc.conv`; w: k x c/groups x taps.

        Parameters:
            x: c x spatial.
            k: channels of the result.
            taps: extents of the filters; an int, or one per spatial axis.
            stride, padding, dilation, groups, activation: as `ooc.conv` takes them.
            bias: whether there is a b, k values; default False.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, k x spatial.
        """
        rank = self._rank(x, "conv")
        act, coef = act_of(activation)
        r, s, d = per_axis("taps", taps, rank), per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
        extent = self.shapes[x][1:]
        pads = pads_of_conv(padding, extent, r, s, d)
        if isinstance(padding, str) and padding in BORDERS:
            x = self.add_layer(layers.ResizeLayer(BORDERS[padding], *bordered(extent, pads)), (x,))
            pads = ((0, 0),) * rank
        layer = layers.ConvLayer(
            as_int("k", k), r, s, pads, d, as_int("groups", groups), flag("bias", bias), act, coef,
        )  # fmt: skip
        return self.add_layer(layer, (x,), name)

    def conv_transpose(
        self, x: str, k: int, taps: PerAxis, *, stride: PerAxis = 1, padding: Padding = 0, output_padding: PerAxis = 0,
        dilation: PerAxis = 1, groups: int = 1, bias: bool = False, activation: str | Activation | None = None,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """y = activation(transposed conv(x, w) + b), as `ooc.conv_transpose`; w: channels of x, k/groups, taps.

        Parameters:
            x: c x spatial.
            k: channels of the result.
            taps, stride, padding, output_padding, dilation, groups, bias, activation: as `ooc.conv_transpose` takes them.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, k x spatial.
        """
        rank = self._rank(x, "conv_transpose")
        act, coef = act_of(activation)
        layer = layers.ConvTranspose(
            as_int("k", k), per_axis("taps", taps, rank), per_axis("stride", stride, rank), as_pads("padding", padding, rank),
            per_axis("output_padding", output_padding, rank), per_axis("dilation", dilation, rank), as_int("groups", groups),
            flag("bias", bias), act, coef,
        )  # fmt: skip
        return self.add_layer(layer, (x,), name)

    def linear(
        self, x: str, k: int, *, bias: bool = False, activation: str | Activation | None = None, name: str | None = None
    ) -> str:
        """y = activation(w @ x + b), as `ooc.linear`; w: k x c.

        Parameters:
            x: c values; flatten what has positions.
            k: values of the result.
            bias: whether there is a b, k values; default False.
            activation: as `ooc.linear` takes it.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, k values.
        """
        act, coef = act_of(activation)
        return self.add_layer(layers.Linear(as_int("k", k), flag("bias", bias), act, coef), (x,), name)

    def pool(
        self, x: str, window: PerAxis = 2, *, stride: PerAxis | None = None, padding: Padding = 0, how: str = "max",
        name: str | None = None,
    ) -> str:  # fmt: skip
        """Maximum or mean over windows, as `ooc.max_pool` and `ooc.avg_pool`.

        Parameters:
            x: c x spatial.
            window, stride, padding: as `ooc.max_pool` takes them; padding may be pairs (before, after).
            how: "max" (default), "average" (padding counts as zeros) or "average_valid".
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, c x spatial.
        """
        rank = self._rank(x, "pool")
        windows = per_axis("window", window, rank)
        strides = windows if stride is None else per_axis("stride", stride, rank)
        return self.add_layer(layers.PoolLayer(how, windows, strides, as_pads("padding", padding, rank)), (x,), name)

    def max_unpool(
        self, x: str, values: str, window: PerAxis = 2, *, stride: PerAxis | None = None, padding: Padding = 0,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """Values of windows where x has the maximum of each, the first of equals; zeros elsewhere.

        Parameters:
            x: c x spatial; what was pooled.
            values: one for each window, as `pool` of x makes them.
            window, stride, padding: of that pooling; windows must not overlap.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, of the shape of x. It has a gradient of values, none of x.

        Raises:
            ShapeError: values of another shape, windows that overlap.

        Source: Badrinarayanan, Kendall, Cipolla, "SegNet", TPAMI 2017; torch.nn.MaxUnpool2d.

        Example:
            >>> g = ooc.Graph("unpooling")
            >>> x = g.input("x", (1, 4, 4))
            >>> g.shapes[g.max_unpool(x, g.pool(x, 2), 2)]
            (1, 4, 4)
        """
        rank = self._rank(x, "max_unpool")
        windows = per_axis("window", window, rank)
        strides = windows if stride is None else per_axis("stride", stride, rank)
        return self.add_layer(layers.MaxUnpool(windows, strides, as_pads("padding", padding, rank)), (x, values), name)

    def global_pool(self, x: str, *, how: str = "average", name: str | None = None) -> str:
        """Mean (how="average", default) or maximum (how="max") over all positions of x: one value per channel."""
        return self.add_layer(layers.GlobalPool(how), (x,), name)

    def lrn(
        self, x: str, size: int = 5, *, alpha: float = 1e-4, beta: float = 0.75, base: float = 2.0, name: str | None = None
    ) -> str:
        """Local response normalisation across channels, as `ooc.lrn`.

        Parameters:
            x: c x spatial.
            size, alpha, beta, base: as `ooc.lrn` takes them.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, of the shape of x.
        """
        layer = layers.LrnLayer(as_int("size", size), as_float("alpha", alpha), as_float("beta", beta), as_float("base", base))
        return self.add_layer(layer, (x,), name)

    def batch_norm(
        self, x: str, *, eps: float = 1e-5, momentum: float = 0.1, activation: str | Activation | None = None,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """y = activation((x - mean) / sqrt(var + eps) * scale + b), statistics over the batch and positions, in inference those
        that have run with the training steps: running = (1 - momentum) * running + momentum * batch's, as `ooc.batch_norm`.

        Parameters:
            x: c x spatial, or c values.
            eps, momentum, activation: as `ooc.batch_norm` takes them.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, of the shape of x.
        """
        act, coef = act_of(activation)
        return self.add_layer(layers.BatchNormLayer(as_float("eps", eps), as_float("momentum", momentum), act, coef), (x,), name)

    def instance_norm(
        self, x: str, *, eps: float = 1e-5, affine: bool = True, activation: str | Activation | None = None,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """As `batch_norm`, with statistics over the positions of each channel of each sample; none run.

        affine: whether there is a scale and a bias, one of each channel; default True."""
        return self.group_norm(x, 0, eps=eps, affine=affine, activation=activation, name=name)

    def group_norm(
        self, x: str, groups: int, *, eps: float = 1e-5, affine: bool = True, activation: str | Activation | None = None,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """As `instance_norm`, with statistics over the positions of `groups` groups of channels."""
        layer = layers.GroupNorm(as_int("groups", groups), as_float("eps", eps), *act_of(activation), affine)
        return self.add_layer(layer, (x,), name)

    def add(
        self, x: str, z: str, *, beta: float = 1.0, activation: str | Activation | None = None, name: str | None = None
    ) -> str:
        """y = activation(x + beta * z), extents of 1 repeated; gradients where both have one shape and beta is 1."""
        return self.add_layer(layers.Add(*act_of(activation), as_float("beta", beta)), (x, z), name)

    def multiply(self, x: str, z: str, *, activation: str | Activation | None = None, name: str | None = None) -> str:
        """y = activation(x * z); z has the shape of x, or 1 where its values are repeated; or one value per channel alone."""
        return self.add_layer(layers.MultiplyLayer(*act_of(activation)), (x, z), name)

    def matmul(self, a: str, b: str, how: str = "nn", *, alpha: float = 1.0, name: str | None = None) -> str:
        """y = alpha * a b for each sample and head: a is heads x rows x c, b heads x c x columns, y heads x rows x columns.

        how: "nn" (default), "nt" (a b^T: b is heads x columns x c), "tn" (a^T b: a is heads x c x rows)."""
        return self.add_layer(layers.MatMulLayer(how, as_float("alpha", alpha)), (a, b), name)

    def attention(
        self, q: str, k: str, v: str, bias: str | None = None, mask: str | None = None, *, scale: float | None = None,
        groups: int = 1, by: Sequence[str] = (), name: str | None = None,
    ) -> str:  # fmt: skip
        """y = softmax(scale * q k^T + bias + mask) v for each head, whose scores are never a tensor.

        Parameters:
            q: heads x queries x c.
            k: heads x keys x c.
            v: heads x keys x depth.
            bias, mask: heads x queries x keys, or 1 where it is repeated; default none. Where they are minus infinity a key does
                not count; a query of which none counts is 0.
            scale: default 1 / sqrt(c).
            groups: heads come in so many groups one after the other, such as windows; default 1.
            by: of bias and mask, as far as there are, the axes along which they are full, as letters of g (groups), k (heads of a
                group), h (queries) and w (keys): `("khw", "ghw")` for a bias of each head and a mask of each group, with
                heads / groups and groups in front. Default: as their shapes tell, with one group.
        """
        c = self.shapes[q][-1] if q in self.shapes else 1
        layer = layers.AttentionLayer(c**-0.5 if scale is None else as_float("scale", scale), as_int("groups", groups), tuple(by))
        return self.add_layer(layer, (q, k, v, *(x for x in (bias, mask) if x is not None)), name)

    def dropout(self, x: str, rate: float = 0.5, *, name: str | None = None) -> str:
        """x with each value dropped with probability `rate`, others divided by 1 - rate; x itself in inference. What is dropped
        follows from the session's seed, the step, the layer's name and the index alone."""
        return self.add_layer(layers.DropoutLayer(as_float("rate", rate)), (x,), name)

    def activation(self, x: str, how: str | Activation, coef: float | None = None, *, name: str | None = None) -> str:
        """activation(x): one of `ooc.activation`'s, with its coef."""
        return self.add_layer(layers.Act(*act_of(how, "how", coef)), (x,), name)

    def function(self, x: str, how: str, a: float = 0.0, b: float = 0.0, *, name: str | None = None) -> str:
        """y = f(x): clip (to a..b), hard_sigmoid (a * x + b), hard_swish, silu, gelu, gelu_tanh, erf, reciprocal, softplus, above
        (1 where x > a, else 0), abs, sqrt, rsqrt, exp, log, pow (x ** a), sin and others; all of `ooc.ops.function.FUNCTIONS`."""
        return self.add_layer(layers.FunctionLayer(how, as_float("a", a), as_float("b", b)), (x,), name)

    def binary(self, x: str, z: str, how: str, *, name: str | None = None) -> str:
        """y = f(x, z): divide, power, maximum, minimum, greater, not_less, equal (1 where it holds, else 0), where (x where z is
        not 0, else 0), unless (x where z is 0, else 0). z has the shape of x, or 1 where its values are repeated; or one value
        per channel alone."""
        return self.add_layer(layers.BinaryLayer(how), (x, z), name)

    def parameter(self, values: Any, size: Sequence[int] | None = None, dtype: str = "f32", *, name: str | None = None) -> str:
        """A parameter, that training moves, as a tensor which is the same for each sample; with extents of 1 repeated to `size`
        (default: none are)."""
        array = np.asarray(values, np.float64)
        shape = array.shape or (1,)
        y = self.add_layer(layers.ParameterLayer(shape, shape if size is None else tuple(size), dtype), (), name)
        self.begin_with({f"{y}.value": array.reshape(shape)})
        return y

    def affine(
        self, x: str, how: str, values: Any, *, alpha: float = 1.0, activation: str | Activation | None = None,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """y = activation(alpha * x + values) or activation(x * values); the values are a parameter, that training moves.

        Parameters:
            x: c x spatial, or c values.
            how: "shift" or "scale".
            values: an array of the shape of x, or with 1 where a value is repeated.
            alpha: of a shift; default 1.
            activation: as `ooc.conv` takes it.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, of the shape of x.
        """
        array = np.asarray(values, np.float64)
        layer = layers.Affine(how, array.shape, as_float("alpha", alpha), *act_of(activation))
        y = self.add_layer(layer, (x,), name)
        self.begin_with({f"{y}.value": array})
        return y

    def convert(self, x: str, *, scale: float = 1.0, offset: float = 0.0, dtype: str = "f32", name: str | None = None) -> str:
        """x, an input of integers, as floating numbers: x * scale + offset, in `dtype`; without a gradient."""
        return self.add_layer(layers.Convert(as_float("scale", scale), as_float("offset", offset), dtype), (x,), name)

    def round(self, x: str, to: str, *, name: str | None = None) -> str:
        """x as integers of a type (u8, u16, i16, i32, b8): the nearest, within its range; without a gradient."""
        return self.add_layer(layers.Round(to), (x,), name)

    def argmax(self, x: str, to: str = "u8", *, name: str | None = None) -> str:
        """Which channel of x is the largest at every position, one channel of integers of a type; without a gradient."""
        return self.add_layer(layers.ArgMaxLayer(to), (x,), name)

    def softmax(self, x: str, *, log: bool = False, name: str | None = None) -> str:
        """Softmax over the channels, or its logarithm."""
        return self.add_layer(layers.Softmax("log" if flag("log", log) else "plain"), (x,), name)

    def stop(self, x: str, *, how: str = "zero", name: str | None = None) -> str:
        """x under another name, cut off from gradients: none passes (how="zero", the default), or one should that is not known
        (how="unknown"), and plans that need it are refused."""
        return self.add_layer(layers.Stop(how), (x,), name)

    def loss(
        self, how: str, logits: str, *, weight: float = 1.0, weights: Sequence[float] | None = None, smoothing: float = 0.0,
        smooth: float = 1.0, batch: bool = False, background: bool = True, name: str | None = None,
    ) -> str:  # fmt: skip
        """A loss of a training step. Where there are several their sum is what a step returns, and what gradients are of.

        `session.step` is given what each compares:

        - "cross_entropy" of the channels of the logits: a label per position, an integer, negative where the position does not
          count. The mean over those that do.
        - "mse", the square of the difference, "l1", its absolute value, and "bce", the binary cross-entropy of logits: a target
          of the shape and dtype of the logits. The mean over all elements.
        - "dice": labels as of cross-entropy, 0 and 1 where there is one channel. 1 - (2 * sum of p * t + smooth) /
          (sum of p + t + smooth), the mean over channels and samples, sums over the positions with a label; p is the softmax of
          the channels, or the sigmoid of one, t is 1 where the label is that class.

        Parameters:
            how: "cross_entropy", "mse", "l1", "bce" or "dice".
            logits: c x spatial, or c values.
            weight: a factor of this loss; default 1.
            weights: of cross_entropy, one for each class: the mean is of the losses times the weights of their labels, divided by
                the sum of these. Of bce, one for each channel, of targets that are 1. Default None: all are 1.
            smoothing: of cross_entropy: the share of a label that goes to all classes alike; default 0.
            smooth: of dice, see above; default 1.
            batch: of dice: True sums over the samples of the batch, too; default False.
            background: of dice: False leaves channel 0 out; default True.
            name: of the loss; default None: "loss", then "loss2".

        Returns:
            name: of the loss; its labels are given in each step.
        """
        if how not in layers.LOSSES:
            raise ArgumentError(f"loss: expected {', '.join(map(repr, layers.LOSSES))}; got {shown(how)}")
        options = {
            "weights": as_floats("weights", () if weights is None else weights), "smoothing": as_float("smoothing", smoothing),
            "smooth": as_float("smooth", smooth), "batch": flag("batch", batch), "background": flag("background", background),
        }  # fmt: skip
        usual = {"weights": (), "smoothing": 0.0, "smooth": 1.0, "batch": False, "background": True}
        kind = layers.LOSSES[how]
        taken = {f.name for f in fields(kind)}
        if odd := [option for option, value in options.items() if value != usual[option] and option not in taken]:
            raise ArgumentError(f"loss: {how} takes no {', '.join(odd)}")
        layer = kind(weight=as_float("weight", weight), **{o: value for o, value in options.items() if o in taken})
        names = itertools.chain(("loss",), (f"loss{i}" for i in itertools.count(2)))
        return self.add_layer(layer, (logits,), name or next(n for n in names if n not in self.shapes))
