"""One kind of list for all that has a name: what is built in, what installed packages add, and what stands in a file.

Packages add to a list with a Python entry point of its group; nobody has to be asked. A file is named by its path
and the name within it: `./my.py:FedAvgM`. This module knows nothing about what it lists, and is the only one that
loads code by its name.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from coterie.errors import CoterieError, described, require, unknown
from coterie.files import resolved

T = TypeVar("T")
Adopt = Callable[[str, object], T]
"""Makes an entry of what was found under a name, or says in words why it is none."""

OWN_FILE = "./file.py:Name"


class Registry(MutableMapping[str, T], Generic[T]):
    """Things of one kind by name, in alphabetical order.

    `entries` are the built-in ones: things, or texts such as `"package.module:Name"` that are loaded when first used.
    To them come the entry points of `group`. One that cannot be loaded is an error when it is used; lists leave it
    out and `problems` names it. What is added here (`registry["name"] = thing`) exists in this process alone.

    >>> numbers = Registry("number", "example.numbers", {"pi": "math:pi", "one": 1.0}, lambda name, found: found)
    >>> list(numbers), "two" in numbers, round(numbers["pi"], 2)
    (['one', 'pi'], False, 3.14)
    >>> numbers.spelt("PI"), numbers.spelt("tau")
    ('pi', 'tau')
    >>> numbers.find("on")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: unknown number 'on'; did you mean 'one'? (allowed: one, pi, or ./file.py:Name)
    """

    def __init__(self, kind: str, group: str, entries: Mapping[str, T | str], adopt: Adopt[T]) -> None:
        self.kind, self.group = kind, group
        self._entries: dict[str, T | str] = dict(entries)
        self._adopt = adopt
        self._adopted: dict[EntryPoint, T] = {}

    def find(self, name: str, besides: Iterable[str] = ()) -> T:
        """The thing of that name, or in that file; `besides` are names that are allowed too where this is called."""
        if is_reference(name):
            return self._in_file(name)
        if name not in self:
            raise unknown(self.kind, name, (*self, *besides), also=OWN_FILE)
        return self[name]

    def spelt(self, name: str) -> str:
        """A name as it is listed, if it is but for capitals; any other text is left as it is."""
        if name in self or is_reference(name):
            return name
        return next((known for known in self if known.lower() == name.lower()), name)

    def adopt(self, name: str, thing: object) -> T:
        """An entry made of a thing that was given, without adding it."""
        return self._adopt(name, thing)

    def problems(self) -> dict[str, str]:
        """What is wrong with entry points that cannot be used, by name."""
        reasons = {}
        for name in self._points():
            try:
                self[name]
            except CoterieError as error:
                reasons[name] = str(error)
        return reasons

    def name_of(self, thing: object) -> str | None:
        """The name under which a class or function is listed; nothing more is loaded for it."""
        for name, entry in self._entries.items():
            if entry is thing or (isinstance(entry, str) and _present(*_parts(entry)) is thing):
                return name
        for name, points in self._points().items():
            for point in points:
                if self._adopted.get(point) is thing or _present(point.module, point.attr) is thing:
                    return name
        return None

    def origin(self, name: str) -> Origin | None:
        """The installed package that added a name, if one did."""
        points = self._points().get(name)
        return None if points is None else Origin.of(points[0])

    def __getitem__(self, name: str) -> T:
        points = self._points().get(name, ())
        if name not in self._entries and not points:
            raise KeyError(name)
        if len(points) + (name in self._entries) > 1:
            owners = [*(["Coterie"] if name in self._entries else []), *map(_spoken, points)]
            raise CoterieError(
                f"{self.kind} '{name}' means several things, of {' and of '.join(owners)}; uninstall all but one, or "
                "have one renamed"
            )
        if points:
            return self._of_point(points[0])
        entry = self._entries[name]
        if isinstance(entry, str):
            entry = self._entries[name] = self._adopt(name, named(entry))
        return entry

    def __setitem__(self, name: str, thing: T) -> None:
        require(name not in self, f"{self.kind} '{name}' exists already; choose another name")
        self._entries[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._entries, *self._points()}))

    def __len__(self) -> int:
        return len({*self._entries, *self._points()})

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._points()

    def items(self) -> ItemsView[str, T]:
        """All that can be used, by name."""
        broken = self.problems()
        return {name: self[name] for name in self if name not in broken}.items()

    def values(self) -> ValuesView[T]:
        """All that can be used."""
        return dict(self.items()).values()

    def _points(self) -> Mapping[str, tuple[EntryPoint, ...]]:
        return _entry_points(self.group, tuple(sys.path))

    def _of_point(self, point: EntryPoint) -> T:
        if point not in self._adopted:
            try:
                self._adopted[point] = self._adopt(point.name, point.load())
            except (Exception, SystemExit) as error:  # whatever importing somebody's package may raise
                raise CoterieError(
                    f"{self.kind} '{point.name}' of {_spoken(point)} cannot be loaded ({_reason(error)}); mend or "
                    "uninstall that package"
                ) from error
        return self._adopted[point]

    def _in_file(self, reference: str) -> T:
        path, name = split_reference(reference)
        require(bool(name), f"{self.kind} '{reference}': say what to take from the file, such as {path}:Name")
        try:
            file = file_at(path)
        except OSError as error:
            raise CoterieError(f"{self.kind} '{reference}': {path} cannot be read ({error.strerror})") from None
        try:
            module = file.load()
        except (Exception, SystemExit) as error:  # whatever somebody's file may raise
            raise CoterieError(
                f"{self.kind} '{reference}': {path} cannot be loaded ({_reason(error)}); a file may import what is "
                "installed, not its neighbours"
            ) from error
        if not hasattr(module, name):
            defined = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == file.module]
            raise unknown(f"name in {path}", name, defined)
        return self._adopt(f"{file.path}:{name}", getattr(module, name))


def subclasses_of(base: type[Any]) -> Adopt[Any]:
    """Entries are classes that extend `base`."""

    def adopt(name: str, thing: object) -> object:
        fits = isinstance(thing, type) and issubclass(thing, base)
        require(fits, f"'{name}' must be a class that extends {base.__module__}.{base.__qualname__}")
        return thing

    return adopt


@dataclass(frozen=True)
class Origin:
    """An installed package: its name, its version, and a hash of its sources."""

    distribution: str
    version: str
    sha256: str

    @classmethod
    def of(cls, point: EntryPoint) -> Origin:
        """The package of an entry point."""
        assert point.dist is not None
        return cls(point.dist.name, point.dist.version, sources_sha256(point.module.partition(".")[0]))


@dataclass(frozen=True)
class PluginFile:
    """A file as it was when it was read: of Python, or data that a setting names.

    Its module is named after its content: two versions of a file are two modules, and a copy of it is the same one.
    """

    path: str
    source: bytes

    @classmethod
    def read(cls, path: str | Path) -> PluginFile:
        """The file at a path, which is made absolute; a stand-in goes by the path of its original."""
        place = resolved(path)
        return cls(_STAND_INS.get(str(place), str(place)), place.read_bytes())

    @cached_property
    def sha256(self) -> str:
        """The hash of its content."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def module(self) -> str:
        """The name of its module."""
        return f"coterie_file_{self.sha256[:16]}"

    def load(self) -> ModuleType:
        """Its module, executed once in a process."""
        if self.module not in sys.modules:
            module = ModuleType(self.module)
            module.__file__ = self.path
            # Dataclasses look up their annotations there, and pickle looks up classes.
            sys.modules[self.module] = module
            try:
                exec(compile(self.source, self.path, "exec", dont_inherit=True), vars(module))
            except BaseException:
                del sys.modules[self.module]
                raise
        FILES.pop(self.module, None)  # the latest comes last
        FILES[self.module] = self
        return sys.modules[self.module]


FILES: dict[str, PluginFile] = {}
"""The files that were loaded in this process, by module. Workers are sent them, since they cannot import them."""
_STAND_INS: dict[str, str] = {}


def later(text: str) -> Callable[..., Any]:
    """A function by its name, `"package.module:name"`, that is loaded when it is first called.

    So things can show themselves by what stands in a layer above them, and nobody else has to load it.

    >>> later("math:sqrt")(9)
    3.0
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return named(text)(*args, **kwargs)

    return call


def named(text: str) -> Any:
    """What `"package.module:name"` stands for.

    >>> named("math:pi") > 3
    True
    """
    module, attribute = _parts(text)
    return _attribute(importlib.import_module(module), attribute)


@functools.cache
def deferred(file: str) -> Mapping[str, str]:
    """What a module imports for type checkers alone, by name: `"package.module:name"`.

    So a package says once which public names it has, and loads each of them when it is first used.

    >>> from coterie import methods
    >>> deferred(methods.__file__)["FedAvg"]
    'coterie.methods.fedavg:FedAvg'
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    places: dict[str, str] = {}
    for node in (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)):
        for alias in node.names:
            if alias.name == "*":
                spec = importlib.util.find_spec(str(node.module))
                assert spec is not None
                places |= deferred(str(spec.origin))
            else:
                places[alias.asname or alias.name] = f"{node.module}:{alias.name}"
    return places


def on_first_use(module: str, file: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module: loads what it imports for type checkers alone, a name at a time."""
    names = deferred(file)

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        return named(names[name])

    return load


def is_reference(text: str) -> bool:
    """Whether a text names something in a file.

    >>> is_reference("./my.py:FedAvgM"), is_reference("fedavg"), is_reference("my.csv")
    (True, False, False)
    """
    return text.endswith(".py") or text.rpartition(":")[0].endswith(".py")


def split_reference(text: str) -> tuple[str, str]:
    """The path and the name of a reference; the name may be missing.

    >>> split_reference("./my.py:FedAvgM")
    ('./my.py', 'FedAvgM')
    """
    if text.endswith(".py"):
        return text, ""
    path, _, name = text.rpartition(":")
    return path, name


def absolute(text: str) -> str:
    """A reference that holds wherever one is; any other text is left as it is."""
    if not is_reference(text):
        return text
    path, name = split_reference(text)
    try:
        place = file_at(path).path
    except OSError:  # whoever loads it will say so
        place = str(resolved(path))
    return f"{place}:{name}"


def short_name(text: str) -> str:
    """What to call a thing in titles and file names: of a reference or an absolute path, the name alone.

    >>> short_name("./my.py:FedAvgM"), short_name("fedavg"), short_name("/data/visits.csv")
    ('FedAvgM', 'fedavg', 'visits.csv')
    """
    if is_reference(text):
        return split_reference(text)[1]
    return Path(text).name if Path(text).is_absolute() else text


def stand_in(copy: str | Path, original: str) -> None:
    """From now on, what is loaded from a copy goes by the path of its original."""
    _STAND_INS[str(Path(copy).resolve())] = original


def at_hand(path: str) -> Path:
    """Where to read a file: at its path, or if it is gone, in the copy that stands in for it."""
    copies = (copy for copy, original in reversed(_STAND_INS.items()) if original == path)
    return next((place for place in map(Path, (path, *copies)) if place.is_file()), Path(path))


def file_at(path: str) -> PluginFile:
    """The file at a path; one that is gone is as it was loaded."""
    try:
        return PluginFile.read(path)
    except FileNotFoundError:
        known = _loaded_from(str(resolved(path)))
        if known is None:
            raise
        return known


def file_of(reference: str) -> PluginFile:
    """The file of a reference or at a path, as it was loaded last, or as it is."""
    path = split_reference(absolute(reference))[0] if is_reference(reference) else reference
    return _loaded_from(path) or PluginFile.read(at_hand(path))


def _loaded_from(path: str) -> PluginFile | None:
    return next((file for file in reversed(FILES.values()) if file.path == path), None)


def reference_to(thing: Any) -> str | None:
    """The reference of a class or function that was loaded from a file."""
    file = FILES.get(getattr(thing, "__module__", ""))
    return None if file is None else f"{file.path}:{thing.__qualname__}"


@functools.cache
def _entry_points(group: str, _path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """The entry points of a group, as long as Python looks for packages where it does now."""
    points: dict[str, tuple[EntryPoint, ...]] = {}
    for point in importlib.metadata.entry_points(group=group):
        points[point.name] = (*points.get(point.name, ()), point)
    return points


def sources_sha256(package: str) -> str:
    """A hash of the Python files of a package or of a lone module."""
    digest = hashlib.sha256()
    for name, source in _sources(package):
        digest.update(f"{name}\n{hashlib.sha256(source).hexdigest()}\n".encode())
    return digest.hexdigest()


def _sources(package: str) -> Iterator[tuple[str, bytes]]:
    """The Python files of a package or of a lone module, by name."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None:
            yield Path(spec.origin).name, Path(spec.origin).read_bytes()
        return
    for folder in map(Path, spec.submodule_search_locations):
        for path in sorted(folder.rglob("*.py")):
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _parts(text: str) -> tuple[str, str]:
    module, _, attribute = text.partition(":")
    return module, attribute


def _attribute(module: object, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), module)


def _present(module: str, attribute: str) -> object:
    """What a name stands for if its module is loaded already."""
    try:
        return _attribute(sys.modules[module], attribute)
    except (KeyError, AttributeError):
        return None


def _spoken(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) if isinstance(error, CoterieError) else described(error)
