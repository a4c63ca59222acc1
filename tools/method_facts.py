"""`python -m tools.method_facts`: write what the code says of a method's traffic onto its page; `--check` only looks.

What is told comes from running the method on packed messages (`coterie.report.facts`), as `coterie methods` does.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from coterie.methods import METHODS
from coterie.report.facts import facts

PAGES = Path(__file__).parents[1] / "docs" / "methods"
BEGIN, END = "<!-- facts: written by tools/method_facts.py -->", "<!-- end of facts -->"
HEADING = "## What is personal, what travels"


def with_facts(text: str, name: str) -> str:
    """A method's page with what the code says between the two comments, at the head of the section on what travels."""
    told = facts(METHODS[name]())
    block = (
        f"{BEGIN}\n\nBy the code (`coterie methods {name}`): a client sends *{told.up}* and receives *{told.down}*; "
        f"of single\nclients the server sees *{told.sees}*; personal are *{told.personal}*.\n\n{END}"
    )
    if BEGIN in text:
        return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)
    return text.replace(f"{HEADING}\n", f"{HEADING}\n\n{block}\n", 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or say which are out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.method_facts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if a page is out of date")
    check = parser.parse_args(arguments).check
    stale = []
    for name in sorted(METHODS):
        page = PAGES / f"{name}.md"
        text = page.read_text(encoding="utf-8")
        if (new := with_facts(text, name)) != text:
            stale.append(name)
            if not check:
                page.write_text(new, encoding="utf-8")
    print(f"{'out of date' if check else 'written'}: {', '.join(stale)}" if stale else "all up to date")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
