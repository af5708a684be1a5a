"""Networks in ONNX files as graphs: `ooc.onnx.load`."""

from __future__ import annotations

from ooc.onnx.model import load

__all__ = ["load"]
