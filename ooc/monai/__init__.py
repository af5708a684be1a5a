"""ooc for MONAI: an inferer that runs a network on the whole volume, under a memory budget."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ooc.errors import UnsupportedError

try:
    import torch
    from monai.data import MetaTensor
    from monai.inferers import Inferer
    from torch.utils import _pytree as pytree
except ImportError as error:
    raise ImportError('ooc.monai: needs MONAI and PyTorch; pip install "ooc[monai]"', name=error.name) from None

from ooc.runtime.device import Device
from ooc.torch.convert import Forwards
from ooc.torch.segment import Terms

__all__ = ["WholeVolumeInferer"]


class WholeVolumeInferer(Inferer):  # type: ignore[misc]
    """The network on all of the volume at once, as if it fitted: no windows, no seams, norms over the whole.

    It stands where `monai.inferers.SlidingWindowInferer` does, for networks that were trained on whole volumes, or whose result
    does not depend on how much they see. While a call lasts the network runs through ooc as after `ooc.torch.convert_model`;
    after it, it is as it was. Plans are kept for the next call of the same size.

    Parameters:
        budget: of the device's memory, as `ooc.device` takes it ("8 GiB"); the volume and the result are beside it. Default None:
            the device's.
        device: an `ooc.Device` or a name that `ooc.device` takes, such as "auto"; default None: the current one.
        policy: as `Graph.plan` takes it; default "auto".

    Raises:
        OptionError, ArgumentError: a budget, device or policy that is none, in the first call.

    Source: `monai.inferers.Inferer`.

    Example:
        >>> inferer = ooc.monai.WholeVolumeInferer(budget="8 GiB")
        >>> with torch.no_grad():
        ...     labels = inferer(volume, network).argmax(1, keepdim=True)
    """

    def __init__(self, budget: int | float | str | None = None, device: Device | str | None = None, policy: str = "auto") -> None:
        super().__init__()
        self.budget, self.device, self.policy = budget, device, policy
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, Forwards] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled and copied: plans are made again."""
        return {name: value for name, value in vars(self).items() if name != "_known"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._known = weakref.WeakKeyDictionary()

    def __call__(self, inputs: torch.Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The network's result on inputs.

        Parameters:
            inputs: batch x channels x space, a `MetaTensor` too.
            network: a `torch.nn.Module`.
            args, kwargs: further arguments of the network.

        Returns:
            outputs: as the network returns them; of a `MetaTensor` with its affine and meta data.

        Raises:
            UnsupportedError: a network that is no module. BudgetError: no plan fits; its smallest_bytes would do.
        """
        if not isinstance(network, torch.nn.Module):
            raise UnsupportedError(f"network: expected a torch.nn.Module, got a {type(network).__name__}")
        plain = inputs.as_tensor() if isinstance(inputs, MetaTensor) else inputs
        forwards = self._known.get(network)
        if forwards is None or not forwards.is_of(network):
            forwards = self._known[network] = Forwards(network, Terms(self.budget, self.device, self.policy))
        with forwards:
            outputs = network(plain, *args, **kwargs)
        if not isinstance(inputs, MetaTensor):
            return outputs
        return pytree.tree_map(lambda y: MetaTensor(y).copy_meta_from(inputs) if isinstance(y, torch.Tensor) else y, outputs)
