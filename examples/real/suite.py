"""Other people's models, with random weights, as whole networks: taken or not, and as PyTorch has them, or exit status 1.

python examples/real/suite.py [NAME ...] [--way torch|onnx|legacy|convert] [--json FILE]     (needs PyTorch, torchvision, timm,
segmentation_models_pytorch and monai)

A model is right where ooc's output, without a budget and under a quarter and a sixteenth of what it took without one, is within
2e-5 of PyTorch's, or within twice PyTorch's own distance from its result in float64. It comes by `ooc.torch.graph`, or by a file
of one of PyTorch's exporters to ONNX; --way convert: by `ooc.torch.convert_model`, see `converting.py`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
import torchvision
from comparing import distance
from converting import converted
from running import commit, machine

import ooc
from ooc.errors import OocError

CLOSE = 2e-5  # of the largest value
OWN = 2  # times PyTorch's own distance from float64 that are right, too
SHARES = (4, 16)  # of the peak without a budget
CLASSES = (
    "alexnet", "vgg11_bn", "squeezenet1_1", "densenet121", "inception_v3", "shufflenet_v2_x0_5", "mobilenet_v2",
    "mobilenet_v3_small", "resnext50_32x4d", "mnasnet0_5", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "vit_b_16",
    "swin_t", "swin_v2_t", "maxvit_t",
)  # fmt: skip
TIMM = (
    "resnest14d", "convnextv2_atto", "fastvit_sa12", "repvgg_a0", "ghostnet_100", "edgenext_xx_small", "poolformer_s12",
    "mixer_s32_224", "resmlp_12_224", "gmlp_ti16_224", "nfnet_l0", "hrnet_w18_small", "dla34", "coatnet_nano_rw_224",
    "levit_128s", "mobilevit_xxs", "xcit_nano_12_p16_224", "efficientformer_l1", "pvt_v2_b0", "cspresnet50",
    "res2net50_26w_4s", "skresnet18", "starnet_s1", "inception_next_atto", "rexnet_100", "focalnet_tiny_srf",
    "deit_tiny_patch16_224", "cait_xxs24_224", "twins_pcpvt_small", "crossvit_tiny_240", "beit_base_patch16_224",
    "volo_d1_224", "convit_tiny", "nest_tiny", "visformer_tiny", "davit_tiny", "gcvit_xxtiny", "efficientvit_b0",
    "efficientvit_m0", "tnt_s_patch16_224", "eva02_tiny_patch14_224", "mvitv2_tiny", "hiera_tiny_224", "tiny_vit_5m_224",
    "samvit_base_patch16_224", "vit_relpos_small_patch16_224", "sequencer2d_s",
)  # fmt: skip
OTHERS = {"deeplabv3_resnet50": (129, 97), "fcn_resnet50": (129, 97), "r3d_18": (16, 64, 64), "swin3d_t": (16, 64, 64)}
SEGMENTATION: dict[str, Callable[[Any], Any]] = {  # of segmentation_models_pytorch
    "unet_resnet18": lambda smp: smp.Unet("resnet18", encoder_weights=None),
    "unetplusplus_mobilenet_v2": lambda smp: smp.UnetPlusPlus("mobilenet_v2", encoder_weights=None),
    "fpn_efficientnet_b0": lambda smp: smp.FPN("efficientnet-b0", encoder_weights=None),
    "pspnet_resnet18": lambda smp: smp.PSPNet("resnet18", encoder_weights=None),
    "manet_resnet18": lambda smp: smp.MAnet("resnet18", encoder_weights=None),
    "segformer_mit_b0": lambda smp: smp.Segformer("mit_b0", encoder_weights=None),
}
VOLUMES: dict[str, Callable[[Any], Any]] = {  # of monai
    "monai_unet": lambda nets: nets.UNet(3, 1, 2, (8, 16, 32), (2, 2), num_res_units=2),
    "monai_segresnet": lambda nets: nets.SegResNet(3, 8, 1, 2),
    "monai_dynunet": lambda nets: nets.DynUNet(3, 1, 2, [3] * 3, [1, 2, 2], [2, 2], filters=[8, 16, 32]),
    "monai_vnet": lambda nets: nets.VNet(3, 1, 2),
    "monai_attention_unet": lambda nets: nets.AttentionUnet(3, 1, 2, (8, 16, 32), (2, 2)),
    "monai_unetr": lambda nets: nets.UNETR(1, 2, (48, 48, 48), 8, 96, 192, 6),
    "monai_swin_unetr": lambda nets: nets.SwinUNETR(1, 2, feature_size=12),
}
NAMES = (*CLASSES, *TIMM, *OTHERS, *SEGMENTATION, *VOLUMES)
SIDES = {"inception_v3": 299, "crossvit_tiny_240": 240}
SHAPES = (
    OTHERS | dict.fromkeys(SEGMENTATION, (160, 96)) | dict.fromkeys(VOLUMES, (48, 48, 48)) | {"monai_swin_unetr": (64, 32, 32)}
)


class Trial(NamedTuple):
    """What came of a model.

    Fields:
        layers: of its graph.
        seconds: of PyTorch's export and the translation.
        planning: seconds of each plan.
        errors: of each run, of the largest value.
        limit: what is right.
    """

    layers: int
    seconds: float
    planning: list[float]
    errors: list[float]
    limit: float

    @property
    def right(self) -> bool:
        """Whether all runs are."""
        return max(self.errors) <= self.limit


def module_of(name: str) -> tuple[Any, Any]:
    """A model in evaluation, its statistics drawn, and an input."""
    torch.manual_seed(0)
    if name in TIMM:
        module = timm.create_model(name, pretrained=False)
    elif name in SEGMENTATION:
        module = SEGMENTATION[name](importlib.import_module("segmentation_models_pytorch"))
    elif name in VOLUMES:
        module = VOLUMES[name](importlib.import_module("monai.networks.nets"))
    elif name in OTHERS:
        family = torchvision.models.segmentation if "resnet50" in name else torchvision.models.video
        without = {"weights_backbone": None} if "resnet50" in name else {}
        module = getattr(family, name)(weights=None, **without)
    else:
        module = getattr(torchvision.models, name)(weights=None)
    side = SIDES.get(name, 224)
    for part in module.modules():
        if getattr(part, "running_var", None) is not None:
            part.running_var.uniform_(0.5, 1.5)
            part.running_mean.normal_(0, 0.1)
    for parameter in module.parameters():  # heads that begin with zeros would show nothing
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return module.eval(), torch.randn(1, 1 if name in VOLUMES else 3, *SHAPES.get(name, (side, side)))


def by_file(dynamo: bool) -> Callable[[Any, Any], ooc.Graph]:
    """What translates a file that one of PyTorch's exporters wrote."""

    def translate(module: Any, x: Any) -> ooc.Graph:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            path = str(Path(folder) / "model.onnx")
            torch.onnx.export(module, (x,), path, dynamo=dynamo, verbose=False)
            return ooc.onnx.load(path)

    return translate


WAYS: dict[str, Callable[[Any, Any], ooc.Graph]] = {
    "torch": lambda module, x: ooc.torch.graph(module, tuple(x.shape)), "onnx": by_file(True), "legacy": by_file(False),
}  # fmt: skip


def tried(name: str, way: str) -> Trial:
    """A model translated, planned, run and compared. Raises OocError where it is not taken."""
    module, x = module_of(name)
    begin = time.perf_counter()
    graph = WAYS[way](module, x)
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        theirs = module(x)
        exact = module.double()(x.double())
    peak, planning, errors = 0, list[float](), list[float]()
    for share in (None, *SHARES):
        begin = time.perf_counter()
        plan = graph.plan(batch=1, train=False, device="cpu", budget=None if share is None else peak // share)
        peak = peak or plan.peaks["device"]
        planning.append(time.perf_counter() - begin)
        with plan.session() as session:
            errors.append(distance(session.forward(x.numpy()), theirs))
    return Trial(len(graph.nodes), seconds, planning, errors, max(CLOSE, OWN * distance(theirs, exact)))


def row_of(name: str, way: str) -> dict[str, Any]:
    """A line of results."""
    try:
        trial = converted(*module_of(name)) if way == "convert" else tried(name, way)
    except OocError as error:
        return {"model": name, "way": way, "taken": False, "why": str(error)[:150]}
    except Exception as error:
        if way not in ("onnx", "legacy"):
            raise
        return {"model": name, "way": way, "taken": False, "why": f"not exported: {type(error).__name__}: {error}"[:150]}
    return {"model": name, "way": way, "taken": True, "right": trial.right, "worst": max(trial.errors), **trial._asdict()}


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all {len(NAMES)}")
    parser.add_argument("--way", choices=(*WAYS, "convert"), default="torch", help="how it comes to ooc; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where lines of results are added")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    warnings.simplefilter("ignore")
    rows = []
    for name in chosen.names or NAMES:
        row = {**row_of(name, chosen.way), "commit": commit(), "machine": machine()}
        rows.append(row)
        if chosen.json:
            with chosen.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
        said = f"{row['worst']:.1e}" if row["taken"] else row["why"]
        print(f"{name:32}{'right' if row.get('right') else 'WRONG' if row['taken'] else 'not taken'}  {said}", flush=True)
    taken, right = (sum(bool(row.get(key)) for row in rows) for key in ("taken", "right"))
    print(f"{right} right, {taken - right} wrong, {len(rows) - taken} not taken")
    return int(taken != right)


if __name__ == "__main__":
    sys.exit(main())
