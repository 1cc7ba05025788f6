"""What the contract tests look at: every Python file of the package, read once."""

import ast
import importlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "fieldwatch"
PUBLIC = (
    "fieldwatch",
    "fieldwatch.pipeline",
    "fieldwatch.notebook",
    "fieldwatch.rules",
    "fieldwatch.files",
    "fieldwatch.lazy",
    "fieldwatch.cli.kit",
)
"""The toolkit's public modules, see decision 0001."""


@dataclass(frozen=True)
class Source:
    """One file: its place inside the package, its text and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def room(self) -> str:
        """The room that the file belongs to: `run`, or `recon/mesh` for one of the domain."""
        parts = self.path.relative_to(PACKAGE).with_suffix("").parts
        return "/".join(parts[:2] if parts[0] == "recon" else parts[:1])


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, f"no Python files under {PACKAGE}"
    texts = {path: path.read_text() for path in files}
    return [Source(path, text, ast.parse(text)) for path, text in texts.items()]


@pytest.fixture(scope="session")
def project() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def requirements(project) -> dict[str, set[str]]:
    """Distributions that pyproject.toml requires, by extra; those of the toolkit alone under the empty name."""
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: {re.split(r"[\[<>=!~; ]", line)[0].lower() for line in lines} for extra, lines in lists.items()}


@pytest.fixture(scope="session", params=PUBLIC)
def public(request) -> ModuleType:
    """Each public module of the toolkit."""
    return importlib.import_module(request.param)


@pytest.fixture(scope="session")
def offered() -> dict[str, set[str]]:
    """The names of all public modules of the toolkit."""
    # The names of the adapters are known without their frameworks, which only their use imports.
    return {name: set(importlib.import_module(name).__all__) for name in (*PUBLIC, "fieldwatch.adapters")}
