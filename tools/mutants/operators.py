"""What a mutant is, and every mutant of a source text: one small change each, written into the text as it stands."""

from __future__ import annotations

import ast
import difflib
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice

ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*"}
ARITHMETIC |= {ast.BitAnd: "|", ast.BitOr: "&"}
COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    **{ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<")},
    **{ast.Eq: ("!=",), ast.NotEq: ("==",), ast.Is: ("is not",), ast.IsNot: ("is",)},
    **{ast.In: ("not in",), ast.NotIn: ("in",)},
}
# A function or method, and what takes the same arguments and gives something of the same shape.
NAMES = {
    **{"mean": ("sum", "amax"), "sum": ("mean",), "max": ("min",), "min": ("max",), "amax": ("amin", "mean")},
    **{
        "amin": ("amax",),
        "argmax": ("argmin",),
        "argmin": ("argmax",),
        "maximum": ("minimum",),
        "minimum": ("maximum",),
    },
    **{
        "any": ("all",),
        "all": ("any",),
        "floor": ("ceil",),
        "ceil": ("floor",),
        "zeros": ("ones",),
        "ones": ("zeros",),
    },
    **{"zeros_like": ("ones_like",), "ones_like": ("zeros_like",), "median": ("mean",), "std": ("var",)},
}
# Methods that are left out, so that what they are called on stands in their place.
STEPS = ("abs", "clamp", "clamp_max", "clamp_min", "clone", "detach", "exp", "log", "nan_to_num", "softmax", "sqrt")
# Functions of which the first argument changes its sign.
FLIPPED = ("softmax", "log_softmax", "exp", "sigmoid", "argsort", "topk", "sort")
# Keywords without which the numbers are the same, as far as anybody promises.
IDLE_KEYWORDS = ("device", "dtype", "strict", "each")
COMMUTATIVE = ("max", "min", "maximum", "minimum")
MODULES = ("torch", "functional", "math", "np")
UNTOUCHED = (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Raise, ast.Assert, ast.Global, ast.Nonlocal)


@dataclass(frozen=True)
class Mutant:
    """One change to a file: the bytes from `start` to `end` of its source become `new`.

    `statement` is the first line of the statement that changes, `line` where in it.
    """

    path: str
    line: int
    statement: int
    operator: str
    start: int
    end: int
    new: str
    in_function: bool

    def applied(self, source: str) -> str:
        """The source with the change."""
        raw = source.encode()
        return (raw[: self.start] + self.new.encode() + raw[self.end :]).decode()

    def difference(self, source: str) -> tuple[str, str]:
        """The lines that change, before and after, without their indentation."""
        old, new = source.splitlines(), self.applied(source).splitlines()
        lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[3:]
        before, after = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "-+")
        return "\n".join(before), "\n".join(after)


def candidates(source: str, path: str) -> list[Mutant]:
    """Every change that an operator would make to a source text, in the order of the text, each once."""
    return sorted(dict.fromkeys(Operators(source, path).all()), key=lambda mutant: (mutant.start, mutant.end))


def mutants_of(source: str, path: str) -> list[Mutant]:
    """The candidates that are still Python, and other Python than before.

    >>> [mutant.applied("x < 1") for mutant in mutants_of("x < 1", "")]
    ['x <= 1', 'x >= 1', 'x < 2', 'x < 0']
    """
    return [mutant for mutant in candidates(source, path) if differs(mutant, source)]


def differs(mutant: Mutant, source: str) -> bool:
    """Whether a change leaves Python, and not the same."""
    try:
        return ast.dump(ast.parse(mutant.applied(source))) != _dumped(source)
    except SyntaxError:
        return False


@lru_cache(maxsize=1)
def _dumped(source: str) -> str:
    return ast.dump(ast.parse(source))


def sample(sources: Mapping[str, str], size: int, seed: int) -> list[Mutant]:
    """So many mutants of source texts by path, drawn evenly from all; the same for the same seed and texts."""
    every = [mutant for path, source in sources.items() for mutant in candidates(source, path)]
    random.Random(seed).shuffle(every)
    return list(islice((mutant for mutant in every if differs(mutant, sources[mutant.path])), size))


class Operators:
    """All operators, applied wherever they fit."""

    def __init__(self, source: str, path: str) -> None:
        self.raw, self.tree, self.path = source.encode(), ast.parse(source), path
        self.starts = [0, *accumulate(len(line) for line in self.raw.splitlines(keepends=True))]

    def all(self) -> Iterator[Mutant]:
        """Every change, before duplicates and what is no Python are left out."""
        yield from self._below(self.tree, 0, False)

    def _below(self, node: ast.AST, statement: int, inside: bool) -> Iterator[Mutant]:
        if isinstance(node, UNTOUCHED) or getattr(getattr(node, "test", None), "id", "") == "TYPE_CHECKING":
            return
        line = getattr(node, "lineno", 0)
        statement = line if isinstance(node, ast.stmt) else statement
        for operator, start, end, new in self._changes(node):
            yield Mutant(self.path, line, statement, operator, start, end, new, inside)
        function = isinstance(node, ast.FunctionDef | ast.Lambda)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for child in value if isinstance(value, list) else [value]:
                    # The first of something is often its last, too.
                    first = isinstance(node, ast.Subscript) and isinstance(child, ast.Constant) and child.value == 0
                    if isinstance(child, ast.AST) and not first:
                        # Defaults of arguments are computed when the module is imported.
                        yield from self._below(child, statement, inside or (function and name == "body"))

    def _span(self, node: ast.AST) -> tuple[int, int]:
        begin, end = self.starts[node.lineno - 1], self.starts[node.end_lineno - 1]  # type: ignore[attr-defined]
        return begin + node.col_offset, end + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.raw[start:end].decode()

    def _wrapped(self, node: ast.AST) -> str:
        """What stands alone as it is, anything else in brackets."""
        alone = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Constant | ast.Subscript)
        return self._text(node) if alone else f"({self._text(node)})"

    def _between(self, left: ast.AST, right: ast.AST, new: str) -> tuple[int, int, str]:
        """An operator between two operands, brackets and line breaks around it kept."""
        start, end = self._span(left)[1], self._span(right)[0]
        sign = re.search(rb"[-+*/%&|<>=!]+|\b(is\s+not|not\s+in|is|in)\b", self.raw[start:end])
        assert sign is not None
        return start + sign.start(), start + sign.end(), new

    def _changes(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        match node:
            case ast.BinOp(left, op, right) if type(op) in ARITHMETIC:
                yield ("arithmetic", *self._between(left, right, ARITHMETIC[type(op)]))
                if isinstance(op, ast.Mult | ast.Div):
                    yield ("operand", *self._span(node), self._wrapped(left))
                if isinstance(op, ast.Mult):
                    yield ("operand", *self._span(node), self._wrapped(right))
            case ast.Compare(left, ops, rights):
                for before, sign, after in zip([left, *rights[:-1]], ops, rights, strict=True):
                    for new in COMPARISONS[type(sign)]:
                        yield ("comparison", *self._between(before, after, new))
            case ast.Constant(bool() as value):
                yield ("constant", *self._span(node), str(not value))
            case ast.Constant(int() as value):
                yield ("constant", *self._span(node), str(value + 1))
                yield ("constant", *self._span(node), str(value - 1) if value else "(-1)")
            case ast.Constant(float() as value):
                yield ("constant", *self._span(node), str(value + 1))
                yield ("constant", *self._span(node), str(value / 2) if value else "(-1.0)")
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield ("sign" if isinstance(node.op, ast.USub) else "not", *self._span(node), self._wrapped(operand))
            case ast.BoolOp(op, values):
                word = "or" if isinstance(op, ast.And) else "and"
                for kept in (values[:-1], values[1:]):
                    yield ("condition", *self._span(node), f"({self._from_to(kept[0], kept[-1])})")
                brackets = [f"({self._text(value)})" for value in values]
                yield ("condition", *self._span(node), f"({f' {word} '.join(brackets)})")
            case ast.Subscript(_, ast.Constant(0)):
                yield ("index", *self._span(node.slice), "1")
            case ast.Call():
                yield from self._calls(node)
            case ast.Name("round", ast.Load()) | ast.Attribute(attr="round", ctx=ast.Load()):
                yield ("round", *self._span(node), f"({self._text(node)} + 1)")
            case ast.stmt():
                yield from self._statements(node)
        test = getattr(node, "test", None)
        if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.BoolOp | ast.NamedExpr):
            yield ("condition", *self._span(test), f"(not ({self._text(test)}))")

    def _from_to(self, first: ast.AST, last: ast.AST) -> str:
        return self.raw[self._span(first)[0] : self._span(last)[1]].decode()

    def _calls(self, node: ast.Call) -> Iterator[tuple[str, int, int, str]]:
        span, function = self._span(node), node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        _, end = self._span(function)
        alone = not node.args and not node.keywords
        for new in (*NAMES.get(name, ()), *(("mean",) if name in ("max", "min") and alone else ())):
            yield "reduction", end - len(name), end, new
        method = isinstance(function, ast.Attribute) and self._text(function.value) not in MODULES
        if method and name in STEPS:
            yield "step", *span, self._wrapped(function.value)  # type: ignore[attr-defined]
        if name in FLIPPED:
            turned = function.value if method else node.args[0]  # type: ignore[attr-defined]
            yield "sign", *self._span(turned), f"(-({self._text(turned)}))"
        if (
            len(node.args) >= 2
            and name not in COMMUTATIVE
            and all(isinstance(one, ast.Name | ast.Attribute) for one in node.args[-2:])
        ):
            first, second = node.args[-2:]
            between = self.raw[self._span(first)[1] : self._span(second)[0]].decode()
            swapped = f"{self._text(second)}{between}{self._text(first)}"
            yield "arguments", self._span(first)[0], self._span(second)[1], swapped
        if name == "where" and len(node.args) == 3:
            first, second = node.args[1:]
            swapped = f"{self._text(second)}, {self._text(first)}"
            yield "arguments", self._span(first)[0], self._span(second)[1], swapped
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in IDLE_KEYWORDS:
                start, end = self._span(keyword)
                before = re.search(rb",\s*\Z", self.raw[:start])
                after = re.match(rb"\s*,\s*", self.raw[end:])
                start = before.start() if before else start
                yield "keyword", start, end + (after.end() if after and not before else 0), ""

    def _statements(self, node: ast.stmt) -> Iterator[tuple[str, int, int, str]]:
        match node:
            case ast.Expr(ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.AugAssign() | ast.Continue() | ast.Break():
                yield ("statement", *self._span(node), "pass")
            case ast.Assign([ast.Attribute() | ast.Subscript()], _):
                yield ("statement", *self._span(node), "pass")
            case ast.Assign([ast.Name(name)], value) if name in {getattr(one, "id", "") for one in ast.walk(value)}:
                yield ("statement", *self._span(node), "pass")
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            sign = {ast.Add: "-=", ast.Sub: "+=", ast.Mult: "/=", ast.Div: "*="}[type(node.op)]
            yield ("arithmetic", *self._between(node.target, node.value, sign))
