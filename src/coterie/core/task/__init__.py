"""Tasks: what a label is, the loss, the prediction, and what is measured. The rest knows them through `Task` alone."""

from collections.abc import Callable

from coterie.core.task.base import Loss, LossWithSlope, MeanLoss, Metric, Sums, Task, merged
from coterie.core.task.classification import Accuracy, Classification, CrossEntropy
from coterie.errors import unknown

TASKS: dict[str, Callable[[], Task]] = {task.name: task for task in (Classification,)}
"""Every task, by name."""


def make_task(name: str) -> Task:
    """A task by name, with its usual loss and metrics.

    >>> make_task("classification").judged_by
    'accuracy'
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]()


__all__ = [
    "TASKS",
    "Accuracy",
    "Classification",
    "CrossEntropy",
    "Loss",
    "LossWithSlope",
    "MeanLoss",
    "Metric",
    "Sums",
    "Task",
    "make_task",
    "merged",
]
