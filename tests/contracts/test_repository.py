"""The repository's own papers: build files, decisions, dependencies with their reasons."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

HEADINGS = ["Context", "Decision", "Consequences", "Measured", "Alternatives"]
SUPPRESSION = re.compile(r"# (?:noqa: ((?:[A-Z]+\d+(?:, ?)?)+)|(?:type|pyright): ignore\[([\w, -]+)\])(.*)")


def repository_files(root: Path) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout: nothing says which files belong to the repository")
    return [root / name for name in listing.stdout.split("\0") if name and (root / name).is_file()]


def test_every_dependency_has_its_reason(root, requirements):
    page = (root / "docs/decisions/0002-dependencies.md").read_text()
    reasons = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|", page, re.MULTILINE))
    assert set(reasons) == set().union(*requirements.values())
    assert [name for name, reason in reasons.items() if len(reason) < 12] == []


def test_every_dependency_is_pinned_and_no_cuda_comes_along(root, requirements):
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    declared = set().union(*requirements.values())
    assert declared - requirements["gpu"] - {"fieldwatch"} <= set(pins)
    assert [name for name in pins if re.match(r"nvidia-(?!ml-py|cuda-nvrtc)|cuda|triton", name)] == []
    assert "+" not in pins["torch"]  # one pin fits the CPU build and the CUDA build


def decision_pages(root: Path) -> list[Path]:
    return sorted((root / "docs/decisions").glob("[0-9]*.md"))


def test_decisions_are_numbered_and_have_the_five_parts(root):
    pages = decision_pages(root)
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    found = {page.name: re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE) for page in pages}
    assert {name: headings for name, headings in found.items() if headings != HEADINGS} == {}


def test_the_index_lists_every_decision_once_with_its_title(root):
    index = (root / "docs/decisions/README.md").read_text()
    listed = re.findall(r"^\* \[(.+)\]\((\d{4}-.+\.md)\)$", index, re.MULTILINE)
    titles = [(page.read_text().splitlines()[0].removeprefix("# "), page.name) for page in decision_pages(root)]
    assert sorted(listed) == sorted(titles)


def lines_without_reason(block: str) -> list[str]:
    """Lines of a TOML list of rule codes that carry no comment."""
    return [line.strip() for line in block.splitlines() if re.match(r'\s*"[A-Z]+\d*"', line) and "# " not in line]


def test_a_lint_ignore_without_reason_is_seen():
    assert lines_without_reason('    "D203",  # clash\n    "TRY003",\n    "S603", "S607", # real processes') == [
        '"TRY003",'
    ]


def test_every_lint_ignore_has_its_reason(root):
    block = (root / "pyproject.toml").read_text().split("[tool.ruff.lint]")[1].split("[tool.ruff.lint.pydocstyle]")[0]
    assert lines_without_reason(block) == []


def suppressions_without_reason(text: str) -> list[str]:
    """Codes that a file suppresses without saying why at least once."""
    found = [
        (code.strip(), rest) for noqa, ignore, rest in SUPPRESSION.findall(text) for code in (noqa or ignore).split(",")
    ]
    explained = {code for code, rest in found if re.search(r"[a-z]{4,}", rest)}
    return sorted({code for code, _ in found if code} - explained)


def test_a_suppression_without_reason_is_seen():
    lines = ["f()  # noqa: S603", "g()  # noqa: SLF001  the public call", "h()  # noqa: SLF001", "x  # type: ignore[z]"]
    assert suppressions_without_reason("\n".join(lines)) == ["S603", "z"]


def test_every_suppression_has_its_reason(sources):
    assert {s.place: found for s in sources if (found := suppressions_without_reason(s.text))} == {}


def test_no_file_names_the_place_it_was_written_in(root):
    places = re.compile("|".join(["farm" + "-", "/" + "work" + "/", r"\." + "library", "shared" + "/design"]))
    text = {path: path.read_bytes().decode(errors="ignore") for path in repository_files(root)}
    found = {str(path.relative_to(root)): places.findall(content) for path, content in text.items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_make_help_lists_every_target(root):
    makefile = (root / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert targets is not None
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=root, capture_output=True, text=True, check=True
    )
    assert sorted(re.findall(r"make ([\w-]+) +\S", shown.stdout)) == sorted(targets[1].split())


def test_every_benchmark_is_run_by_make_bench_or_listed_as_left_out(root):
    folder = root / "benchmarks"
    spec = importlib.util.spec_from_file_location("bench_all", folder / "all.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    run = {words[0] for words in page.COMMANDS.values()}
    rows = re.findall(r"^\| `([\w./]+)` \|", (folder / "README.md").read_text(), re.MULTILINE)
    left_out = {name.rstrip("/") for name in rows}
    scripts = {path.name for path in folder.glob("*.py")} - {"all.py"}
    folders = {path.parent.name for path in folder.glob("*/*.py")}
    assert run & left_out == set()
    assert run | left_out == scripts | folders


def test_ci_is_strict_and_runs_the_same_as_a_person(root):
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "set -euo pipefail"
    assert [line for line in lines if line.startswith("make")] == ["make test", "make check"]


def test_the_license_is_the_one_that_is_declared(root, project):
    text = (root / "LICENSE").read_text()
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_the_package_says_that_it_is_typed(root):
    assert (root / "src/fieldwatch/py.typed").exists()
