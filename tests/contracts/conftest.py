"""What the contract tests look at: every Python file of the package, read once."""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "fieldwatch"


@dataclass(frozen=True)
class Source:
    """One file: its place inside the package, its text and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        return self.path.relative_to(PACKAGE).as_posix()


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, f"no Python files under {PACKAGE}"
    texts = {path: path.read_text() for path in files}
    return [Source(path, text, ast.parse(text)) for path, text in texts.items()]
