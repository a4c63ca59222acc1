"""What is wrong with an answer, if anything is: said in a line, and held against its sender alone."""

from __future__ import annotations

import math

from coterie.core.task import Task
from coterie.deployment.packed import Note, RefusedError, one_line


def fault_of(error: Exception) -> str:
    """Why a message is refused, in a line: what was wrong with it, or which error it made."""
    return one_line(error) if isinstance(error, RefusedError) else f"it cannot be read ({type(error).__name__})"


def says_why(note: Note) -> bool:
    """Whether an answer says why it carries no tensors: training diverged, or what the site kept is lost."""
    return note.get("diverged") is True or note.get("lost") is True


def check_answer(note: Note, round: int, task: Task) -> None:
    """Refuse an answer whose note is malformed or of another round."""
    if note.get("round") != round or type(note.get("diverged")) is not bool:
        raise RefusedError(f"it answers round {note.get('round')}, not {round}")
    epsilon = note.get("epsilon")
    if epsilon is not None and (type(epsilon) is not float or not 0 <= epsilon < math.inf):
        raise RefusedError("its account of privacy is malformed")
    for moment in ("received", "trained"):
        score = note.get(moment)
        if score is not None and not task.accepts(score):
            raise RefusedError(f"its result '{moment}' is malformed")
