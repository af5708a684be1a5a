"""The operations, a small file each; importing the package registers their descriptors."""

from ooc.ops.activation import ACTIVATIONS
from ooc.ops.argmax import ArgMax
from ooc.ops.attention import Attention
from ooc.ops.batch_norm import BnApply, BnMoments
from ooc.ops.batch_norm_backward import BnPull, BnSums
from ooc.ops.binary import Binary
from ooc.ops.concat import Concat
from ooc.ops.conv_base import Convolution
from ooc.ops.conv_dgrad import ConvDgrad
from ooc.ops.conv_output import ConvFprop, ConvWgrad
from ooc.ops.convert import ConvertIn, ConvertOut
from ooc.ops.dice import DiceDot, DicePull, DiceScore, DiceSums
from ooc.ops.distance import Distance, DistanceBackward
from ooc.ops.dropout import Dropout
from ooc.ops.function import Function
from ooc.ops.grid_sample import GridSample, GridSampleDgrid, GridSampleDx
from ooc.ops.loss import CrossEntropy, CrossEntropyBackward
from ooc.ops.lrn import LrnBackward, LrnForward
from ooc.ops.matmul import MatMul
from ooc.ops.moved import Permute, Spread
from ooc.ops.multiply import Multiply
from ooc.ops.optimizer import AdamUpdate, RmsPropUpdate, Sgd
from ooc.ops.pacing import Accrue, Pace, Squares
from ooc.ops.place import Embed
from ooc.ops.pointwise import ActivationBackward, Pointwise
from ooc.ops.pool import PoolForward
from ooc.ops.pool_backward import PoolBackward
from ooc.ops.reduce import Reduce
from ooc.ops.resize import Resize
from ooc.ops.resize_backward import ResizeBackward
from ooc.ops.softmax import SoftmaxApply, SoftmaxSum
from ooc.ops.softmax_backward import SoftmaxDot, SoftmaxPull
from ooc.ops.upsample import Upsample, UpsampleBackward

__all__ = [
    "ACTIVATIONS",
    "Accrue",
    "ActivationBackward",
    "AdamUpdate",
    "ArgMax",
    "Attention",
    "Binary",
    "BnApply",
    "BnMoments",
    "BnPull",
    "BnSums",
    "Concat",
    "ConvDgrad",
    "ConvFprop",
    "ConvWgrad",
    "ConvertIn",
    "ConvertOut",
    "Convolution",
    "CrossEntropy",
    "CrossEntropyBackward",
    "DiceDot",
    "DicePull",
    "DiceScore",
    "DiceSums",
    "Distance",
    "DistanceBackward",
    "Dropout",
    "Embed",
    "Function",
    "GridSample",
    "GridSampleDgrid",
    "GridSampleDx",
    "LrnBackward",
    "LrnForward",
    "MatMul",
    "Multiply",
    "Pace",
    "Permute",
    "Pointwise",
    "PoolBackward",
    "PoolForward",
    "Reduce",
    "Resize",
    "ResizeBackward",
    "RmsPropUpdate",
    "Sgd",
    "SoftmaxApply",
    "SoftmaxDot",
    "SoftmaxPull",
    "SoftmaxSum",
    "Spread",
    "Squares",
    "Upsample",
    "UpsampleBackward",
]  # fmt: skip
