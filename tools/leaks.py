"""`python tools/leaks.py`: look for secrets in all files that git knows, and with `--history` in all that it ever knew.

Keys and tokens are known by their form; nothing is asked over a network. Found ones are named by place and kind, never
shown. A line that must look like one ends with the words `not a secret`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LARGEST = 5_000_000
"""Bytes; larger files are data, not text."""
KNOWN = "not a secret"
KINDS = {
    "private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s*\S"),
    "cloud access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "forge token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{60,}|glpat-[\w-]{20})\b"),
    "chat token": re.compile(r"\bxox[abprs]-[\w-]{10,}"),
    "service key": re.compile(r"\b(?:AIza[\w-]{35}|sk_live_\w{20,}|hf_[A-Za-z0-9]{34}|pypi-AgE[\w-]{50,})"),
    "web token": re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    "address with a password": re.compile(r"\b[a-z][a-z0-9+]*://[^\s/:@\"'<>{}$]+:(?!password@)[^\s/:@\"'<>{}$]{3,}@"),
    "password in an assignment": re.compile(
        r"(?i)\b(?:password|passwd|secret|api_?key|access_?token)\w*[\"']?\s*[:=]\s*[\"'][^\s\"'{}$<>]{12,}[\"']"
    ),
}


def main(arguments: Sequence[str] = ()) -> int:
    """Look, and say where something was found; 1 if so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--history", action="store_true", help="look at every version of every file")
    given = parser.parse_args(arguments)
    places = list(past() if given.history else present())
    for place in places:
        print(place)
    print(f"{len(places)} secrets found" if places else "no secrets found")
    return 1 if places else 0


def found_in(text: str) -> Iterator[tuple[int, str]]:
    """Line and kind of everything that looks like a secret.

    >>> list(found_in("a = 1\\nkey: AKIA" + 16 * "Q"))
    [(2, 'cloud access key')]
    """
    for kind, form in KINDS.items():
        for found in form.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            if KNOWN not in text.splitlines()[line - 1]:
                yield line, kind


def present() -> Iterator[str]:
    """What stands in the files as they are."""
    for name in _git("ls-files", "-z").split("\0"):
        path = REPOSITORY / name
        if not name or not path.is_file() or path.stat().st_size > LARGEST:
            continue
        for line, kind in found_in(path.read_text(encoding="utf-8", errors="replace")):
            yield f"{name}:{line}: {kind}"


def past() -> Iterator[str]:
    """What any commit ever added."""
    commit = name = ""
    for line in _git("log", "--all", "--no-color", "-p", "--unified=0", "--format=commit %h").splitlines():
        if line.startswith("commit "):
            commit = line.removeprefix("commit ")
        elif line.startswith("+++ b/"):
            name = line.removeprefix("+++ b/")
        elif line.startswith("+"):
            for _, kind in found_in(line[1:]):
                yield f"{commit} {name}: {kind}"


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(REPOSITORY), *words], capture_output=True, check=True)
    return done.stdout.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
