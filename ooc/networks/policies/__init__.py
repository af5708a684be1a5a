"""Policies: every published method as one file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ooc.networks.policies.autoswap import AUTOSWAP
from ooc.networks.policies.base import Policy
from ooc.networks.policies.keep import KEEP
from ooc.networks.policies.layrub import LAYRUB
from ooc.networks.policies.microcudnn import MICRO_CUDNN
from ooc.networks.policies.modnn import MODNN
from ooc.networks.policies.ooccudnn import OOC_CUDNN
from ooc.networks.policies.pooch import POOCH
from ooc.networks.policies.smartpool import SMARTPOOL
from ooc.networks.policies.stream import STREAM
from ooc.networks.policies.superneurons import SUPERNEURONS
from ooc.networks.policies.vdnn import VDNN_ALL, VDNN_CONV, VDNN_DYN
from ooc.networks.policies.vdnnpp import VDNNPP

POLICIES: Mapping[str, Policy] = MappingProxyType({
    p.name: p
    for p in (
        KEEP, STREAM, OOC_CUDNN, VDNN_ALL, VDNN_CONV, VDNN_DYN, VDNNPP, SMARTPOOL, AUTOSWAP, LAYRUB, SUPERNEURONS, POOCH, MODNN,
        MICRO_CUDNN,
    )
})  # fmt: skip
