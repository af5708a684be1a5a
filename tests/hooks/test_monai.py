"""`ooc.monai.WholeVolumeInferer`: MONAI's networks on whole volumes, as they are without it."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
monai = pytest.importorskip("monai")

import ooc  # noqa: E402
import ooc.monai  # noqa: E402
from ooc.torch.convert import Forwards  # noqa: E402
from ooc.torch.segment import Terms  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
nets = pytest.importorskip("monai.networks.nets")

NETWORKS: dict[str, Callable[[], Any]] = {
    "UNet": lambda: nets.UNet(3, 1, 2, (8, 16, 32), (2, 2), norm="instance"),
    "SegResNet": lambda: nets.SegResNet(3, 8, 1, 2),
    "DynUNet": lambda: nets.DynUNet(3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2]),
    "AttentionUnet": lambda: nets.AttentionUnet(3, 1, 2, (8, 16), (2,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_volume(name: str) -> None:
    torch.manual_seed(0)
    network, x = NETWORKS[name]().eval(), torch.randn(1, 1, 32, 40, 32)
    inferer = ooc.monai.WholeVolumeInferer(budget="16 MiB", device="cpu")
    assert isinstance(inferer, monai.inferers.Inferer)
    with torch.no_grad():
        expected = network(x)
        for _ in range(2):
            torch.testing.assert_close(inferer(x, network), expected, rtol=1e-4, atol=1e-4)
        assert all("forward" not in m.__dict__ for m in network.modules())
        assert torch.equal(network(x), expected)
        windows = monai.inferers.SlidingWindowInferer(16, overlap=0.25)(x, network)
    assert (windows - expected).abs().max() > 0.05, "windows would have done"


def test_meta_data_go_along() -> None:
    x = monai.data.MetaTensor(
        torch.randn(1, 1, 16, 16, 16), affine=torch.diag(torch.tensor([2.0, 3.0, 4.0, 1.0])), meta={"from": 1}
    )
    with torch.no_grad():
        y = ooc.monai.WholeVolumeInferer()(x, NETWORKS["UNet"]().eval())
    assert isinstance(y, monai.data.MetaTensor) and torch.equal(y.affine, x.affine) and y.meta["from"] == 1


def test_networks_are_let_go() -> None:
    network = NETWORKS["UNet"]().eval()
    inferer, gone = ooc.monai.WholeVolumeInferer(), weakref.ref(network)
    with torch.no_grad():
        inferer(torch.randn(1, 1, 16, 16, 16), network)
    del network
    gc.collect()
    assert gone() is None


def test_a_network_that_changes() -> None:
    """A module inside that was replaced is run; an inferer is copied and pickled."""
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(4, 2, 1)).eval()
    inferer, x = ooc.monai.WholeVolumeInferer(budget="1 MiB"), torch.randn(1, 1, 8, 8, 8)
    with torch.no_grad():
        inferer(x, network)
        network[2] = torch.nn.Conv3d(4, 3, 3, padding=1)
        gc.collect()
        for one in (inferer, copy.deepcopy(inferer), pickle.loads(pickle.dumps(inferer))):
            torch.testing.assert_close(one(x, network), network(x), rtol=1e-4, atol=1e-4)
    assert all("forward" not in m.__dict__ for m in network.modules())


def test_the_last_user_takes_it_away() -> None:
    """Threads may share a network: the first one that leaves does not take ooc away from the other."""
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 1)).eval()
    forwards = Forwards(network, Terms(None, None, "auto"))
    entered, leaving = threading.Event(), threading.Event()

    def use() -> None:
        with forwards:
            entered.set()
            leaving.wait(60)

    thread = threading.Thread(target=use)
    with forwards:
        thread.start()
        assert entered.wait(60)
    assert all("forward" in m.__dict__ for m in network.modules())
    leaving.set()
    thread.join()
    assert all("forward" not in m.__dict__ for m in network.modules())


def test_what_is_refused() -> None:
    x = torch.randn(1, 1, 16, 16, 16)
    with pytest.raises(ooc.UnsupportedError, match=r"network: expected a torch\.nn\.Module"):
        ooc.monai.WholeVolumeInferer()(x, lambda x: x)
    network = NETWORKS["UNet"]().eval()
    with torch.no_grad(), pytest.raises(ooc.BudgetError):
        ooc.monai.WholeVolumeInferer(budget=100)(x, network)
    assert all("forward" not in m.__dict__ for m in network.modules())
