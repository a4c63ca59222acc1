"""Files about the project itself say what the package and the Makefile say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.version import VERSION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation_has_version_and_licence_of_the_package() -> None:
    citation = read("CITATION.cff")
    assert citation["version"] == VERSION
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_workflow_runs_targets_that_exist_on_a_python_that_is_declared() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    declared = {item.rpartition(" :: ")[2] for item in PROJECT["classifiers"] if "Python :: 3." in item}
    steps = [step for job in read(".github/workflows/tests.yml")["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert "make test" in commands
    assert {command.removeprefix("make ") for command in commands} <= targets
    assert {step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")} == declared


def test_hooks_run_tools_that_set_up_installs() -> None:
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks} - {"python"}
    installed = {re.split(r"[<>=]", item)[0] for item in PROJECT["optional-dependencies"]["dev"]}
    assert tools
    assert tools <= installed


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_templates_are_forms_with_fields_of_their_own_names(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        assert form == {"blank_issues_enabled": True}
        return
    fields = [item["id"] for item in form["body"] if item["type"] != "markdown"]
    assert {"name", "description", "body"} <= set(form)
    assert len(fields) == len(set(fields)) > 0


def test_every_decision_is_listed_and_has_its_four_parts() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((.*?)\)", (folder / "index.md").read_text(encoding="utf-8"))
    records = {page.name for page in folder.glob("*.md")} - {"index.md"}
    assert set(listed) == records
    for name in records:
        headings = re.findall(r"^## (.*)$", (folder / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Situation", "Decision", "What follows", "What would change it"], name
