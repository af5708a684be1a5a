"""Applying a trained network to a tensor in a file: from path to path, under a budget."""

from __future__ import annotations

from ooc.apply.job import Application

__all__ = ["Application"]
