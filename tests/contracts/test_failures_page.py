"""docs/failures.md: every documented failure names tests, and the tests that it names exist."""

import ast
import re

import pytest

REPORTED = "20 22 24 40 41 45 50 58 62 75 105 114 118 127 132 137 149 169 194 205 6828 7229".split()
"""Issues that the specification of SuGaR names, section 6."""
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(page: str) -> list[list[str]]:
    """The cells of every row of every table, headings left out."""
    lines = page.splitlines()
    headings = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    body = [
        line
        for number, line in enumerate(lines)
        if line.startswith("|") and not line.startswith("|---") and number not in headings
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def named_tests(tree: ast.Module) -> set[str]:
    """Names of the tests in a file."""
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "failures.md").read_text()


def test_rows_are_read_without_headings():
    assert rows("a\n\n| x | y |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n") == [["1", "2"], ["3", "4"]]


def test_tests_of_a_file_are_found():
    assert named_tests(ast.parse("def test_a(): ...\ndef b(): ...\nclass C:\n  def test_c(self): ...")) == {"test_a"}


def test_every_row_says_what_failed_what_happens_and_which_tests_show_it(page):
    table = rows(page)
    assert len(table) > 50
    assert [row for row in table if len(row) != 3 or not all(row)] == []
    strange = [row[2] for row in table if _TEST.sub("", row[2]).strip(" ,") or not _TEST.search(row[2])]
    assert strange == []


def test_every_test_that_is_named_exists(page, root):
    missing = []
    for path, name in _TEST.findall(page):
        file = root / path
        if not file.is_file() or name not in named_tests(ast.parse(file.read_text())):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_every_issue_that_was_reported_has_a_row(page):
    told = set(re.findall(r"#(\d+)", " ".join(row[0] for row in rows(page))))
    assert sorted(set(REPORTED) - told, key=int) == []
