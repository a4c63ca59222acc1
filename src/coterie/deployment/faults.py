"""What a site tells its server when it cannot do what it was asked: a number. The reason itself stays at the site.

Error texts hold names of files, and these what is in them; none of it is the server's business.
"""

from __future__ import annotations

from coterie.deployment.packed import RefusedError
from coterie.errors import CoterieError

OTHER, REFUSED, DATA, DISK, MEMORY, GONE = 1000, 1001, 1002, 1003, 1004, 1005

# What a site writes above the text of an error, which it keeps to itself.
UNANSWERED = "the server was told only that something went wrong"

FAULTS = {
    REFUSED: "the site refuses the task: it is not as agreed (the site's log says what)",
    DATA: "the site cannot use its data or its settings (the site's log says why)",
    DISK: "the site cannot read or write a file (the site's log says which)",
    MEMORY: "the site has too little memory",
    GONE: "the site's process that trains does not run, or ends at this task (the site's log says more)",
    OTHER: "an error happened at the site (the site's log has it)",
}


def code_of(error: Exception) -> int:
    """The number that stands for an error at a site.

    >>> code_of(FileNotFoundError("patients-with-hiv.csv")) == DISK
    True
    """
    if isinstance(error, RefusedError):
        return REFUSED
    if isinstance(error, CoterieError):
        return DATA
    if isinstance(error, OSError):
        return DISK
    return MEMORY if isinstance(error, MemoryError) else OTHER


def spoken_fault(code: int) -> str:
    """What a number means; those of Flower itself are about the connection.

    >>> print(spoken_fault(DISK))
    the site cannot read or write a file (the site's log says which)
    >>> spoken_fault(3)
    'no answer came through (code 3)'
    """
    return FAULTS.get(code, f"no answer came through (code {code})")
