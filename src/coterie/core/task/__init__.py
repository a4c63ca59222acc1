"""Tasks: what a label is, the loss, the prediction, and what is measured. The rest knows them through `Task` alone."""

from collections.abc import Callable

from coterie.core.task.base import Loss, LossWithSlope, MeanLoss, Metric, Sums, Task, merged
from coterie.core.task.classification import Accuracy, Classification, CrossEntropy
from coterie.core.task.regression import R2, MeanAbsoluteError, Regression, RootMeanSquaredError, SquaredError
from coterie.registry import Registry, subclasses_of

_OWN: dict[str, Callable[[], Task] | str] = {"classification": Classification, "regression": Regression}
TASKS: Registry[Callable[[], Task]] = Registry("task", "coterie.tasks", _OWN, subclasses_of(Task))
"""Every task, by name: a class that can be made without options."""


def as_task(task: str | Task) -> Task:
    """A task, or that of a name with its usual loss and metrics; without a name, classification.

    >>> as_task("").judged_by, as_task("regression").judged_by
    ('accuracy', 'mae')
    """
    if isinstance(task, Task):
        return task
    return TASKS.find(task or Classification.name)()


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
