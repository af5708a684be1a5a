"""Whole networks out of core: one graph, one program of steps, and every published policy on it."""

from __future__ import annotations

from ooc.networks import models
from ooc.networks.graph import Graph
from ooc.networks.optimizers import SGD, Adam, AdamW, RMSprop
from ooc.networks.plan import NetworkPlan
from ooc.networks.policies import POLICIES
from ooc.networks.profile import KernelTime, Profile
from ooc.networks.session import Session

__all__ = ["POLICIES", "SGD", "Adam", "AdamW", "Graph", "KernelTime", "NetworkPlan", "Profile", "RMSprop", "Session", "models"]
