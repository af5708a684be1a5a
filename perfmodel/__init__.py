"""The performance model: measured curves of a machine, the seconds of a step, the simulated time of a schedule.

Imports nothing from ooc: a step is anything with `lane`, `kind`, `what`, `nbytes`, `runs`, `work` and `after`.
"""

from perfmodel.model import Model
from perfmodel.reading import load_device
from perfmodel.simulate import Timeline, simulate

__all__ = ["Model", "Timeline", "load_device", "simulate"]
