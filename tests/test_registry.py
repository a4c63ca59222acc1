"""One kind of list: built in, from installed packages, from files."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.core.task import TASKS
from coterie.data import DATASETS
from coterie.engines import ENGINES
from coterie.errors import CoterieError
from coterie.methods import METHODS, FedAvg, Method
from coterie.models import MODELS
from coterie.partition import PARTITIONS
from coterie.registry import (
    FILES,
    PluginFile,
    Registry,
    absolute,
    file_of,
    is_reference,
    reference_to,
    short_name,
    stand_in,
    subclasses_of,
)
from coterie.rounds.judge import JUDGES
from coterie.rounds.sampler import SAMPLERS
from coterie.rounds.stages import STAGES
from coterie.runs.running import LISTENERS
from plugins import METHOD, install, write_files


class Animal:
    """What the lists of these tests hold."""


class Cat(Animal):
    pass


class Dog(Animal):
    pass


def animals(**entries: Any) -> Registry[type[Animal]]:
    return Registry("animal", "zoo.animals", entries, subclasses_of(Animal))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for installed packages that Python looks into."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_it_is_a_mapping_in_alphabetical_order() -> None:
    zoo = animals(dog=Dog, cat=Cat)
    assert list(zoo) == ["cat", "dog"]
    assert list(zoo.items()) == [("cat", Cat), ("dog", Dog)]
    assert list(zoo.values()) == [Cat, Dog]
    assert len(zoo) == 2
    assert "cat" in zoo
    assert "cow" not in zoo
    assert zoo.get("cow") is None
    with pytest.raises(KeyError):
        zoo["cow"]


def test_texts_are_loaded_when_they_are_first_used() -> None:
    code = (
        "import sys\nfrom coterie.registry import Registry\n"
        "zoo = Registry('animal', 'zoo.animals', {'x': 'colorsys:rgb_to_hsv'}, lambda name, found: found)\n"
        "assert list(zoo) == ['x'] and 'x' in zoo and 'colorsys' not in sys.modules\n"
        "assert zoo['x'].__name__ == 'rgb_to_hsv' and zoo.name_of(zoo['x']) == 'x'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_lists_of_the_package() -> None:
    groups = {
        "coterie.methods": METHODS,
        "coterie.models": MODELS,
        "coterie.datasets": DATASETS,
        "coterie.partitions": PARTITIONS,
        "coterie.engines": ENGINES,
        "coterie.tasks": TASKS,
        "coterie.listeners": LISTENERS,
        "coterie.samplers": SAMPLERS,
        "coterie.stages": STAGES,
        "coterie.judges": JUDGES,
    }
    for group, registry in groups.items():
        assert isinstance(registry, Registry)
        assert registry.group == group
        assert list(registry) == sorted(registry)
    assert METHODS.name_of(FedAvg) == "fedavg"
    assert METHODS.name_of(Method) is None


def test_what_is_added_by_hand() -> None:
    zoo = animals(cat=Cat)
    zoo["dog"] = Dog
    assert zoo["dog"] is Dog
    with pytest.raises(CoterieError, match="animal 'cat' exists already"):
        zoo["cat"] = Dog
    del zoo["dog"]
    assert "dog" not in zoo


def test_unknown_names_say_that_files_are_allowed() -> None:
    with pytest.raises(CoterieError) as caught:
        animals(cat=Cat, dog=Dog).find("cta", besides=["auto"])
    assert str(caught.value) == (
        "unknown animal 'cta'; did you mean 'cat'? (allowed: auto, cat, dog, or ./file.py:Name)"
    )


COW = "from tests.test_registry import Animal\nclass Cow(Animal):\n    pass\n"


def test_installed_packages_add_to_it(site: Path) -> None:
    zoo = animals(cat=Cat)
    assert zoo.origin("cat") is None
    install(site, "farm", "[zoo.animals]\ncow = farm_cow:Cow\n", farm_cow=COW)
    sys.path.append(str(site / "elsewhere"))  # the path has changed: packages are looked for again
    try:
        assert list(zoo) == ["cat", "cow"]
        assert "farm_cow" not in sys.modules, "nothing is loaded for a list of names"
        assert zoo.find("cow").__name__ == "Cow"
        assert zoo.name_of(zoo["cow"]) == "cow"
        origin = zoo.origin("cow")
        assert origin is not None
        assert (origin.distribution, origin.version) == ("farm", "1.0")
        (site / "farm_cow.py").write_text(COW + "# changed\n")
        assert zoo.origin("cow") != origin
    finally:
        sys.path.remove(str(site / "elsewhere"))
        sys.modules.pop("farm_cow", None)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nonesuch_of_this_test", "ModuleNotFoundError: No module named 'nonesuch_of_this_test'"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("Cow = 3", "'cow' must be a class that extends tests.test_registry.Animal"),
        ("", "AttributeError: module 'farm_broken' has no attribute 'Cow'"),
    ],
)
def test_a_broken_package_is_named_and_breaks_nothing_else(site: Path, source: str, reason: str) -> None:
    install(site, "farm", "[zoo.animals]\ncow = farm_broken:Cow\n", farm_broken=source)
    zoo = animals(cat=Cat)
    message = f"animal 'cow' of farm 1.0 cannot be loaded ({reason}); mend or uninstall that package"
    try:
        assert list(zoo) == ["cat", "cow"]
        assert list(zoo.items()) == [("cat", Cat)]
        assert zoo.problems() == {"cow": message}
        with pytest.raises(CoterieError) as caught:
            zoo.find("cow")
        assert str(caught.value) == message
    finally:
        sys.modules.pop("farm_broken", None)


def test_two_things_of_one_name_are_an_error(site: Path) -> None:
    install(site, "farm", "[zoo.animals]\ncat = farm_cow:Cow\ncow = farm_cow:Cow\n", farm_cow=COW)
    install(site, "ranch", "[zoo.animals]\ncow = farm_cow:Cow\n", version="2.0")
    zoo = animals(cat=Cat)
    with pytest.raises(
        CoterieError, match=r"animal 'cat' means several things, of Coterie and of farm 1\.0; uninstall"
    ):
        zoo.find("cat")
    with pytest.raises(CoterieError, match=r"animal 'cow' means several things, of (farm 1\.0|ranch 2\.0) and of"):
        zoo.find("cow")
    assert set(zoo.problems()) == {"cat", "cow"}
    assert list(zoo.items()) == []


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = METHODS.find("./my.py:Mine")
    assert found is METHODS.find("my.py:Mine") is METHODS.find(f"{tmp_path}/my.py:Mine")
    assert issubclass(found, FedAvg)
    assert reference_to(found) == f"{tmp_path}/my.py:Mine" == absolute("./my.py:Mine")
    assert file_of("my.py:Mine").source.decode() == METHOD
    assert METHODS.name_of(found) is None
    assert repr(found()) == "Mine(beta=0.5)"
    assert pickle.loads(pickle.dumps(found())) == found()


def test_a_copy_is_the_same_and_a_new_version_is_another(tmp_path: Path) -> None:
    first, copy = tmp_path / "first.py", tmp_path / "copy.py"
    first.write_text(f"{METHOD}\n# {tmp_path}\n")
    copy.write_bytes(first.read_bytes())
    old = METHODS.find(f"{first}:Mine")
    assert METHODS.find(f"{copy}:Mine") is old
    assert reference_to(old) == f"{copy}:Mine"
    stand_in(copy, str(first))
    assert METHODS.find(f"{copy}:Mine") is old
    assert reference_to(old) == absolute(f"{copy}:Mine") == f"{first}:Mine"
    first.write_text(f"{METHOD}\n# {tmp_path} again\n")
    new = METHODS.find(f"{first}:Mine")
    assert new is not old
    assert file_of(f"{first}:Mine") == FILES[new.__module__]
    first.unlink()
    assert METHODS.find(f"{first}:Mine") is new, "what was loaded stays"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.py:Mine", "method 'nowhere.py:Mine': nowhere.py cannot be read (No such file or directory)"),
        ("my.py", "method 'my.py': say what to take from the file, such as my.py:Name"),
        ("my.py:", "method 'my.py:': say what to take from the file, such as my.py:Name"),
        ("my.py:Mien", "unknown name in my.py 'Mien'; did you mean 'Mine'? (allowed: Mine)"),
        ("net.py:Net", "must be a class that extends coterie.methods.base.Method"),
        (
            "broken.py:Mine",
            "method 'broken.py:Mine': broken.py cannot be loaded (ModuleNotFoundError: No module named 'neighbour'); a "
            "file may import what is installed, not its neighbours",
        ),
        ("syntax.py:Mine", "method 'syntax.py:Mine': syntax.py cannot be loaded (SyntaxError: "),
    ],
)
def test_mistakes_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, message: str) -> None:
    write_files(tmp_path)
    (tmp_path / "broken.py").write_text("import neighbour\n")
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "syntax.py").write_text("def\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CoterieError) as caught:
        METHODS.find(reference)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_a_reference() -> None:
    references = ["a.py:B", "./a.py", "C:\\a.py:B"]
    assert [text for text in (*references, "fedavg", "x.csv", "py:x", "") if is_reference(text)] == references
    assert absolute("fedavg") == short_name("fedavg") == "fedavg"
    assert short_name("/some/where/my.py:Mine") == "Mine"


def test_a_file_that_fails_is_not_half_loaded(tmp_path: Path) -> None:
    file = PluginFile(str(tmp_path / "x.py"), b"value = 1\nraise ValueError('half')\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="half"):
            file.load()
    assert file.module not in sys.modules
    assert file.module not in FILES
