"""Tasks: what a label is, the loss, the prediction, and what is measured. The rest knows them through `Task` alone."""

from collections.abc import Callable

from coterie.core.task.base import Loss, LossWithSlope, MeanLoss, Metric, Sums, Task, merged
from coterie.core.task.classification import Accuracy, Classification, CrossEntropy
from coterie.core.task.regression import R2, MeanAbsoluteError, Regression, RootMeanSquaredError, SquaredError
from coterie.errors import unknown

TASKS: dict[str, Callable[[], Task]] = {task.name: task for task in (Classification, Regression)}
"""Every task, by name."""


def as_task(task: str | Task) -> Task:
    """A task, or that of a name with its usual loss and metrics; without a name, classification.

    >>> as_task("").judged_by, as_task("regression").judged_by
    ('accuracy', 'mae')
    """
    if isinstance(task, Task):
        return task
    name = task or Classification.name
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]()


__all__ = [
    "R2",
    "TASKS",
    "Accuracy",
    "Classification",
    "CrossEntropy",
    "Loss",
    "LossWithSlope",
    "MeanAbsoluteError",
    "MeanLoss",
    "Metric",
    "Regression",
    "RootMeanSquaredError",
    "SquaredError",
    "Sums",
    "Task",
    "as_task",
    "merged",
]
