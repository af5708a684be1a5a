"""A graph's layers that move values to other places, repeat them, or read between them."""

from __future__ import annotations

from collections.abc import Sequence

from ooc.api.arguments import Padding, PerAxis, as_int, as_pads, per_axis
from ooc.errors import ArgumentError
from ooc.networks import layers
from ooc.networks.layer_graph import LayerGraph
from ooc.runtime.call_options import flag


class ArrangingGraph(LayerGraph):
    """A graph with a method for each layer that moves values."""

    def concat(self, *xs: str, name: str | None = None) -> str:
        """Tensors one after the other along the channels."""
        return self.add_layer(layers.ConcatLayer(), xs, name)

    def crop(self, x: str, cut: Padding, *, name: str | None = None) -> str:
        """x without `cut` positions at the ends of each spatial axis: an int, one per axis, or a pair (before, after) each."""
        pads = as_pads("cut", cut, self._rank(x, "crop"))
        return self.add_layer(layers.Pad(tuple((-a, -b) for a, b in pads)), (x,), name)

    def pad(self, x: str, padding: Padding, *, name: str | None = None) -> str:
        """x with zeros around: an int, one per spatial axis, or a pair (before, after) per axis."""
        return self.add_layer(layers.Pad(as_pads("padding", padding, self._rank(x, "pad"))), (x,), name)

    def upsample(
        self, x: str, size: PerAxis | None = None, *, factor: PerAxis | None = None, how: str = "nearest", name: str | None = None
    ) -> str:
        """x resized, as `ooc.upsample`: to extents `size`, or by whole factors; how: "nearest" (default), "linear", "aligned"."""
        rank = self._rank(x, "upsample")
        if (size is None) == (factor is None):
            raise ArgumentError("upsample: expected size= or factor=, one of them")
        if size is not None:
            extents = per_axis("size", size, rank)
        else:
            factors = per_axis("factor", factor, rank)  # type: ignore[arg-type]
            extents = tuple(e * f for e, f in zip(self.shapes[x][1:], factors, strict=True))
        return self.add_layer(layers.UpsampleLayer(how, extents), (x,), name)

    def expand(self, x: str, size: Sequence[int], *, name: str | None = None) -> str:
        """x with its extents of 1 repeated to a size, per sample."""
        return self.add_layer(layers.ExpandLayer(tuple(size)), (x,), name)

    def reshape(self, x: str, size: Sequence[int], *, name: str | None = None) -> str:
        """The values of a sample with other extents, channels first: another name for the same bytes. size (): one number of each
        sample, for an output of shape (batch,)."""
        return self.add_layer(layers.Reshape(tuple(as_int("size", e) for e in size)), (x,), name)

    def permute(self, x: str, order: Sequence[int], *, name: str | None = None) -> str:
        """Channels and spatial axes in another order: axis i of the result is axis order[i] of x."""
        return self.add_layer(layers.PermuteLayer(tuple(as_int("order", e) for e in order)), (x,), name)

    def depth_to_space(self, x: str, block: int, *, how: str = "crd", name: str | None = None) -> str:
        """Channels spread over blocks of `block` positions per spatial axis: how="crd" (default) as PyTorch's pixel_shuffle,
        "dcr" as TensorFlow."""
        return self.add_layer(layers.DepthToSpace(as_int("block", block), how), (x,), name)

    def flatten(self, x: str, *, name: str | None = None) -> str:
        """All values of a sample as one axis: another name for the same bytes."""
        return self.add_layer(layers.Flatten(), (x,), name)

    def grid_sample(
        self, x: str, grid: str, *, how: str = "linear", padding: str = "zeros", aligned: bool = False,
        displacement: PerAxis | None = None, name: str | None = None,
    ) -> str:  # fmt: skip
        """Values of x where another tensor says, as PyTorch's grid_sample.

        Parameters:
            x: c x spatial.
            grid: a channel for each spatial axis of x, the last one first, x spatial: where each result lies in x; -1 and 1 are
                the ends of x.
            how: what lies between values: "linear" (default), "nearest" or "cubic".
            padding: what lies beyond the ends: "zeros" (default), "border", the nearest value, or "reflection".
            aligned: whether -1 and 1 are the centres of the outer values (True) or their outer edges; default False.
            displacement: how far, in values of x, each position lies from that of an even grid over x at most; an int, or one per
                spatial axis. A tile then reads no more of x than is so near; results that lie more than one value farther are
                NaN. Default None: positions may lie anywhere, and all of a channel is held for each tile.
            name: of the layer and of the result; default None: one of its kind.

        Returns:
            name: of the result, c x spatial of the grid. It has gradients of x and of the grid.

        Raises:
            ShapeError: a grid of other axes than x.

        Source: Jaderberg et al., "Spatial transformer networks", NIPS 2015; torch.nn.functional.grid_sample.

        Example:
            >>> g = ooc.Graph("warped")
            >>> x, grid = g.input("x", (3, 16, 16)), g.input("grid", (2, 8, 8))
            >>> g.shapes[g.grid_sample(x, grid, displacement=4)]
            (3, 8, 8)
        """
        reach = () if displacement is None else per_axis("displacement", displacement, self._rank(x, "grid_sample"))
        return self.add_layer(layers.GridSampleLayer(how, padding, flag("aligned", aligned), reach), (x, grid), name)
