"""`python -m tools.method_facts`: what the code says of a method's traffic, for its page and for `coterie methods`.

What is told comes from running the method on packed messages (`coterie.report.facts`). `--check` changes nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import tomli_w

from coterie.methods import METHODS
from coterie.report.facts import KEPT, MethodFacts, facts, kept_facts

PAGES = Path(__file__).parents[1] / "docs" / "methods"
BEGIN, END = "<!-- facts: written by tools/method_facts.py -->", "<!-- end of facts -->"
HEADING = "## What is personal, what travels"


def with_facts(text: str, name: str, told: MethodFacts) -> str:
    """A method's page with what the code says between the two comments, at the head of the section on what travels."""
    block = (
        f"{BEGIN}\n\nBy the code (`coterie methods {name}`): a client sends *{told.up}* and receives *{told.down}*; "
        f"of single\nclients the server sees *{told.sees}*; personal are *{told.personal}*.\n\n{END}"
    )
    if BEGIN in text:
        return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)
    return text.replace(f"{HEADING}\n", f"{HEADING}\n\n{block}\n", 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages and the list, or say what is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.method_facts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if a page is out of date")
    check = parser.parse_args(arguments).check
    found = {name: facts(METHODS[name]()) for name in sorted(METHODS) if METHODS.origin(name) is None}
    stale = [] if KEPT.is_file() and found == kept_facts() else [KEPT.name]
    if stale and not check:
        KEPT.write_text(tomli_w.dumps({name: asdict(told) for name, told in found.items()}), encoding="utf-8")
    for name, told in found.items():
        page = PAGES / f"{name}.md"
        text = page.read_text(encoding="utf-8")
        if (new := with_facts(text, name, told)) != text:
            stale.append(name)
            if not check:
                page.write_text(new, encoding="utf-8")
    print(f"{'out of date' if check else 'written'}: {', '.join(stale)}" if stale else "all up to date")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
