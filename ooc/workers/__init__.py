"""Past one process: an inference as tasks, a journal of what is finished, and who runs them."""

from ooc.workers.run import run_tasks
from ooc.workers.tasks import Task, tasks
from ooc.workers.training import Training

__all__ = ["Task", "Training", "run_tasks", "tasks"]
