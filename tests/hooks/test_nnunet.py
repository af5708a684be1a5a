"""`ooc.nnunet.Predictor`: by a plans file made here, in both semantics, mirrored and not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("nnunetv2")

import numpy as np  # noqa: E402
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor  # noqa: E402
from nnunetv2.utilities.get_network_from_plans import get_network_from_plans  # noqa: E402
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager  # noqa: E402

import ooc  # noqa: E402
import ooc.nnunet  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
DATASET = {
    "channel_names": {"0": "CT"}, "labels": {"background": 0, "one": 1, "two": 2}, "numTraining": 1, "file_ending": ".nii.gz",
}  # fmt: skip


def plans(rank: int, patch: list[int]) -> dict[str, Any]:
    """As nnU-Net's planner writes them, for a small network."""
    kind = f"torch.nn.modules.conv.Conv{rank}d"
    norm = f"torch.nn.modules.instancenorm.InstanceNorm{rank}d"
    kwargs = {
        "n_stages": 3, "features_per_stage": [4, 8, 16], "conv_op": kind, "kernel_sizes": [[3] * rank] * 3,
        "strides": [[1] * rank, [2] * rank, [2] * rank], "n_conv_per_stage": [1, 1, 1], "n_conv_per_stage_decoder": [1, 1],
        "conv_bias": True, "norm_op": norm, "norm_op_kwargs": {"eps": 1e-5, "affine": True}, "dropout_op": None,
        "dropout_op_kwargs": None, "nonlin": "torch.nn.LeakyReLU", "nonlin_kwargs": {"inplace": True},
    }  # fmt: skip
    architecture = {
        "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet", "arch_kwargs": kwargs,
        "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
    }  # fmt: skip
    configuration = {"patch_size": patch, "architecture": architecture, "batch_size": 1, "spacing": [1.0] * 3}
    return {"dataset_name": "Dataset001_Made", "plans_name": "nnUNetPlans", "configurations": {"made": configuration}}


def ready(predictor: Any, rank: int, patch: list[int], mirrored: tuple[int, ...] | None) -> Any:
    manager = PlansManager(plans(rank, patch))
    configuration = manager.get_configuration("made")
    torch.manual_seed(0)
    network = get_network_from_plans(
        configuration.network_arch_class_name, configuration.network_arch_init_kwargs,
        configuration.network_arch_init_kwargs_req_import, 1, 3, allow_init=True, deep_supervision=False,
    )  # fmt: skip
    predictor.manual_initialization(network, manager, configuration, [network.state_dict()], DATASET, "nnUNetTrainer", mirrored)
    return predictor


HERE = {"device": torch.device("cpu"), "perform_everything_on_device": False, "allow_tqdm": False}
CASES = [(3, [16, 16, 16], (0, 1, 2)), (3, [16, 24, 16], None), (2, [16, 24], (0, 1))]
IMAGE = torch.from_numpy(np.random.default_rng(1).standard_normal((1, 20, 28, 36)).astype(np.float32))


def padded(image: Any, rank: int) -> tuple[Any, tuple[slice, ...]]:
    """To multiples of 4 along the network's axes, half of it before."""
    extent = image.shape[1:]
    more = [(-e) % 4 if a >= 3 - rank else 0 for a, e in enumerate(extent)]
    before = [m // 2 for m in more]
    wide = torch.zeros((1, *(e + m for e, m in zip(extent, more, strict=True))))
    inside = tuple(slice(b, b + e) for b, e in zip(before, extent, strict=True))
    wide[(slice(None), *inside)] = image
    return wide, inside


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("rank, patch, mirrored", CASES)
def test_the_whole(rank: int, patch: list[int], mirrored: tuple[int, ...] | None, in_files: bool) -> None:
    """The mean of the network's results on the whole image, mirrored along every set of axes."""
    image = IMAGE[:, :, :27, :33]
    predictor = ready(ooc.nnunet.Predictor(budget="8 MiB", in_files=in_files, **HERE), rank, patch, mirrored)
    logits = predictor.predict_logits_from_preprocessed_data(image)
    wide, inside = padded(image, rank)
    x = wide[None] if rank == 3 else wide.transpose(0, 1)
    axes = [a + 2 for a in mirrored or ()]
    sets = [chosen for n in range(len(axes) + 1) for chosen in itertools.combinations(axes, n)]
    with torch.no_grad():
        mean = sum(torch.flip(predictor.network(torch.flip(x, s)), s) for s in sets) / len(sets)
    expected = (mean[0] if rank == 3 else mean.transpose(0, 1))[(slice(None), *inside)]
    assert logits.dtype is torch.float32 and logits.shape == (3, *image.shape[1:])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("rank, patch, mirrored", CASES)
def test_windows_are_those_of_nnunet(
    rank: int, patch: list[int], mirrored: tuple[int, ...] | None, gaussian: bool, in_files: bool
) -> None:
    own = ready(nnUNetPredictor(use_gaussian=gaussian, **HERE), rank, patch, mirrored)
    ours = ooc.nnunet.Predictor(budget="8 MiB", semantics="window", in_files=in_files, use_gaussian=gaussian, **HERE)
    expected = own.predict_logits_from_preprocessed_data(IMAGE)
    logits = ready(ours, rank, patch, mirrored).predict_logits_from_preprocessed_data(IMAGE)
    assert logits.dtype is torch.half and logits.shape == expected.shape
    torch.testing.assert_close(logits, expected, rtol=2e-3, atol=2e-3)  # some roundings of float16 fall the other way
    assert all("forward" not in m.__dict__ for m in ours.network.modules())


def test_folds() -> None:
    """The mean of several sets of parameters, as nnU-Net takes it."""
    predictor = ready(ooc.nnunet.Predictor(**HERE), 3, [16, 16, 16], None)
    one = {name: value.clone() for name, value in predictor.list_of_parameters[0].items()}
    folds, alone = [one, {name: value * 1.5 for name, value in one.items()}], []
    for parameters in folds:
        predictor.list_of_parameters = [parameters]
        alone.append(predictor.predict_logits_from_preprocessed_data(IMAGE))
    predictor.list_of_parameters = folds
    torch.testing.assert_close(predictor.predict_logits_from_preprocessed_data(IMAGE), (alone[0] + alone[1]) / 2)


def test_what_is_refused() -> None:
    with pytest.raises(ooc.ArgumentError, match="semantics='patches'"):
        ooc.nnunet.Predictor(semantics="patches", **HERE)
    with pytest.raises(ooc.BudgetError):
        ready(ooc.nnunet.Predictor(budget=100, **HERE), 3, [16, 16, 16], None).predict_logits_from_preprocessed_data(IMAGE)
