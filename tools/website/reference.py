"""The reference, made of signatures and docstrings: a line `::: module` or `::: module: Name, Name` becomes entries.

Sources are parsed, not imported: a page takes milliseconds, and nothing that is documented runs.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
DIRECTIVE = re.compile(r"^::: ([\w.]+)(?:: (.+))?$", re.MULTILINE)
DOCTEST = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.MULTILINE)
WIDE = 88  # a signature that is wider stands on several lines
Function = ast.FunctionDef | ast.AsyncFunctionDef


def file_of(module: str) -> Path:
    """The source of a module."""
    place = SOURCES.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def prose(docstring: str) -> str:
    """A docstring as Markdown: examples become code blocks.

    >>> prose("Adds.\\n\\n>>> 1 + 1\\n2")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    text = inspect.cleandoc(docstring)
    return DOCTEST.sub(lambda match: f"\n```pycon\n{match[0]}\n```\n".strip("\n"), text)


def parameters(node: Function, bound: bool) -> list[str]:
    """What a function takes, as written; without `self` for methods."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    listed = [_parameter(one, default) for one, default in zip(positional, defaults, strict=True)]
    if given.vararg or given.kwonlyargs:
        listed.append("*" + (_parameter(given.vararg, None) if given.vararg else ""))
    listed += [_parameter(one, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        listed.append("**" + _parameter(given.kwarg, None))
    return listed[1:] if bound else listed


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg if argument.annotation is None else f"{argument.arg}: {ast.unparse(argument.annotation)}"
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}" if argument.annotation else f"{text}={ast.unparse(default)}"


def signature(name: str, listed: list[str], returns: str = "") -> str:
    """A signature as a code block."""
    after = f" -> {returns}" if returns else ""
    line = f"{name}({', '.join(listed)}){after}"
    if len(line) > WIDE and listed:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in listed) + f"){after}"
    return f"```python\n{line}\n```"


def decorated(node: Function | ast.ClassDef, name: str) -> bool:
    """Whether a decorator of this name stands above a definition."""
    return any(re.match(rf"(\w+\.)?{name}\b", ast.unparse(one)) for one in node.decorator_list)


def fields(node: ast.ClassDef) -> list[str]:
    """The fields of a dataclass as its constructor takes them."""
    found = []
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            kind = ast.unparse(one.annotation)
            if not kind.startswith("ClassVar"):
                found.append(f"{one.target.id}: {kind}" + (f" = {ast.unparse(one.value)}" if one.value else ""))
    return found


def public(nodes: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """Definitions that are meant for others, and say what they are."""
    for node in nodes:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node):
            yield node


def entry(node: Function | ast.ClassDef, within: str, level: int) -> Iterator[str]:
    """One definition, and what it defines."""
    name = f"{within}.{node.name}"
    yield f"{'#' * level} `{node.name}` {{ #{name} }}"
    if isinstance(node, ast.ClassDef):
        makes = next((one for one in node.body if isinstance(one, Function) and one.name == "__init__"), None)
        if fields(node) and decorated(node, "dataclass"):
            yield signature(node.name, fields(node))
        elif makes is not None:
            yield signature(node.name, parameters(makes, bound=True))
    elif not decorated(node, "property"):
        bound = level > 3 and not decorated(node, "staticmethod")
        yield signature(node.name, parameters(node, bound), ast.unparse(node.returns) if node.returns else "")
    yield prose(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        for inner in public(node.body):
            yield from entry(inner, name, level + 1)


def entries(module: str, wanted: list[str]) -> str:
    """What a module defines for others, or the names that are wanted of it, in that order."""
    found = {node.name: node for node in public(ast.parse(file_of(module).read_text(encoding="utf-8")).body)}
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"::: {module}: no {', '.join(missing)} with a docstring there")
    return "\n\n".join(part for name in wanted or found for part in entry(found[name], module, 3))


def with_reference(text: str) -> str:
    """A page with its directives replaced by entries."""
    return DIRECTIVE.sub(lambda match: entries(match[1], match[2].split(", ") if match[2] else []), text)
