"""The plan over layers and inside layers: what may be done, priced, made, compared with every published method."""

from ooc.networks.auto.choice import Choice, choose

__all__ = ["Choice", "choose"]
