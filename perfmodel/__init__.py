"""The tool that measures and predicts: calibrates a machine, measures the library on it, predicts for others.

`python -m perfmodel COMMAND`, see `commands.py`. The model itself is `ooc.model`; its names stand here for programs.
"""

from ooc.model.calibration import load_device
from ooc.model.cost import Model
from ooc.model.simulate import Timeline, simulate

__all__ = ["Model", "Timeline", "load_device", "simulate"]
