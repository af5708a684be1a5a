"""ooc for nnU-Net v2: its predictor with the network on the whole image, or its windows with results in files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ooc.errors import ArgumentError

try:
    import torch
    from acvl_utils.cropping_and_padding.padding import pad_nd_image
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.inference.sliding_window_prediction import compute_gaussian, compute_steps_for_sliding_window
except ImportError as error:
    raise ImportError('ooc.nnunet: needs nnU-Net v2 and PyTorch; pip install "ooc[nnunet]"', name=error.name) from None

from ooc.torch import between, graph
from ooc.torch.convert import Forwards
from ooc.torch.segment import Terms

__all__ = ["Predictor"]

SEMANTICS = ("whole", "window")
SLAB = 1 << 24  # elements that are averaged at a time


class Predictor(nnUNetPredictor):  # type: ignore[misc]
    """nnU-Net's predictor, whose network runs through ooc under a memory budget, and whose logits may lie in files.

    Everything else is nnU-Net's: `initialize_from_trained_model_folder`, `manual_initialization`, `predict_from_files` and the
    rest, folds, mirroring, the cascade, resampling.

    Parameters:
        *args, **kwargs: of `nnUNetPredictor`; its `device` is where the network runs.
        budget: of the device's memory, as `ooc.device` takes it ("8 GiB"); image and logits are beside it. Default None: the
            device's.
        semantics: "whole" (default): the network sees all of the image, padded with zeros to multiples of its strides: no seams,
            norms over the whole, float32 logits. "window": nnU-Net's windows, weights and mean, its float16 logits: what it was
            trained and validated with.
        in_files: True puts logits into temporary files, of which the system keeps in memory what it has room for; default False.
        policy: as `Graph.plan` takes it; default "auto".

    Raises:
        ArgumentError: semantics that are none. BudgetError: no plan fits, in a prediction.

    Source: nnunetv2.inference.predict_from_raw_data.nnUNetPredictor.

    Example:
        >>> predictor = ooc.nnunet.Predictor(budget="8 GiB", device=torch.device("cpu"))
        >>> predictor.initialize_from_trained_model_folder(folder, use_folds=(0,))
        >>> predictor.predict_from_files(images, results)
    """

    def __init__(
        self, *args: Any, budget: int | float | str | None = None, semantics: str = "whole", in_files: bool = False,
        policy: str = "auto", **kwargs: Any,
    ) -> None:  # fmt: skip
        if semantics not in SEMANTICS:
            raise ArgumentError(f"semantics={semantics!r}: expected one of {', '.join(SEMANTICS)}")
        super().__init__(*args, **kwargs)
        self.budget, self.semantics, self.in_files, self.policy = budget, semantics, in_files, policy

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def predict_sliding_window_return_logits(self, input_image: torch.Tensor) -> torch.Tensor:
        """The logits of an image.

        Parameters:
            input_image: c x space, preprocessed.

        Returns:
            logits: classes x space, on the host.
        """
        self.network: torch.nn.Module = self.network.to(self.device).eval()
        make = self._whole if self.semantics == "whole" else self._windows
        sizes = self._multiples(input_image.shape[1:]) if self.semantics == "whole" else self.configuration_manager.patch_size
        image, inside = pad_nd_image(input_image.cpu(), sizes, "constant", {"value": 0}, True, None)
        return make(image)[(slice(None), *inside[1:])]

    @property
    def _mirrored(self) -> list[tuple[int, ...]]:
        """The sets of spatial axes that the network sees mirrored; () among them."""
        axes = tuple(self.allowed_mirroring_axes or ()) if self.use_mirroring else ()
        return [chosen for count in range(len(axes) + 1) for chosen in itertools.combinations(axes, count)]

    @property
    def _rank(self) -> int:
        """Spatial axes of the network: one less than the image's where it sees slices."""
        return len(self.configuration_manager.patch_size)

    def _multiples(self, extent: Sequence[int]) -> list[int]:
        """The next extents that the network's strides divide."""
        strides = self.configuration_manager.pool_op_kernel_sizes
        steps = [math.prod(stride[a] for stride in strides) for a in range(self._rank)]
        steps = [1] * (len(extent) - len(steps)) + steps
        return [-(-e // step) * step for e, step in zip(extent, steps, strict=True)]

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return between.empty(shape, dtype, torch.device("cpu"), self.in_files)

    # ---- the whole

    def _whole(self, image: torch.Tensor) -> torch.Tensor:
        """The mean over mirrored images; slices are samples of a batch."""
        sliced = image.ndim - 1 > self._rank
        x = image.transpose(0, 1) if sliced else image[None]
        built = graph(self.network, tuple(x.shape))
        plan = built.plan(batch=len(x), train=False, budget=self.budget, device=str(self.device), policy=self.policy)
        (name,) = built.outputs
        others = self._mirrored[1:]
        total = self._empty((len(x), *built.shapes[name]), torch.float32)
        more = self._empty(total.shape if others else (0,), torch.float32)
        with plan.session() as session:
            session.forward(x.float().numpy(), out=total.numpy())
            for axes in others:
                flipped = [a + 2 for a in axes]
                session.forward(torch.flip(x, flipped).float().numpy(), out=more.numpy())
                for slab in _slabs(total.shape):
                    total[slab] += torch.flip(more[slab], flipped)
        for slab in _slabs(total.shape) if others else ():
            total[slab] /= 1 + len(others)
        return total.transpose(0, 1) if sliced else total[0]

    # ---- windows

    def _windows(self, image: torch.Tensor) -> torch.Tensor:
        """What nnU-Net makes of windows, with sums as it takes them, in half precision."""
        size = tuple(self.configuration_manager.patch_size)
        logits = self._empty((self.label_manager.num_segmentation_heads, *image.shape[1:]), torch.half).zero_()
        counts = self._empty(image.shape[1:], torch.half).zero_()
        options = {"sigma_scale": 1 / 8, "value_scaling_factor": 10, "device": torch.device("cpu")}
        weights = compute_gaussian(size, **options) if self.use_gaussian else 1
        with Forwards(self.network, Terms(self.budget, str(self.device), self.policy)):
            for at in self._places(image.shape[1:], size):
                window = self._predicted(image[(slice(None), *at)][None].contiguous().to(self.device))
                logits[(slice(None), *at)] += window[0].cpu() * weights
                counts[at] += weights
        for slab in _slabs(logits.shape):
            logits[slab] /= counts[slab[1:]]
        if any(bool(torch.isinf(logits[slab]).any()) for slab in _slabs(logits.shape)):
            raise ArgumentError('infinite logits in half precision; semantics="whole" has them in float32')
        return logits

    def _places(self, extent: Sequence[int], size: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        """Where windows lie, of slices one after the other."""
        inner = extent[len(extent) - len(size) :]
        steps = compute_steps_for_sliding_window(inner, size, self.tile_step_size)
        slices = range(extent[0]) if len(extent) > len(size) else (None,)
        for number, *start in itertools.product(slices, *steps):
            window = tuple(slice(lo, lo + e) for lo, e in zip(start, size, strict=True))
            yield window if number is None else (number, *window)

    def _predicted(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of the network's results on a window and its mirrored ones."""
        flips = [[a + 2 for a in axes] for axes in self._mirrored]
        results = (torch.flip(self.network(torch.flip(x, axes)), axes) for axes in flips)
        return sum(results, start=torch.zeros(())) / len(flips)


def _slabs(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """A tensor in parts along its second axis."""
    each = max(1, SLAB // max(1, shape[0] * math.prod(shape[2:])))
    for lo in range(0, shape[1], each):
        yield (slice(None), slice(lo, lo + each))
