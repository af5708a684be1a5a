"""Whole networks out of core: one graph, one program of steps, and every published policy on it."""

from __future__ import annotations

from ooc.networks import models
from ooc.networks.graph import Graph
from ooc.networks.optimizers import SGD, Adam, AdamW, RMSprop
from ooc.networks.plan import NetworkPlan
from ooc.networks.policies import POLICIES
from ooc.networks.session import Session

__all__ = ["POLICIES", "SGD", "Adam", "AdamW", "Graph", "NetworkPlan", "RMSprop", "Session", "models"]
