"""The operations, one file each; importing the package registers their descriptors."""

from ooc.ops.conv import ConvFprop
from ooc.ops.pointwise import ACTIVATIONS, Pointwise
from ooc.ops.pool import Pool

__all__ = ["ACTIVATIONS", "ConvFprop", "Pointwise", "Pool"]
