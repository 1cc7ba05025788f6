"""What a text refers to can be opened by its reader: a paper, a public project, a file of this repository."""

import re
import subprocess
from pathlib import Path

import pytest

UNREADABLE = re.compile(
    r"\bthe seeds\b|\bseeds'|\bthe seed's\b|\bseed \d{3}\b|\bseed projects?\b"
    r"|\bdesign/\w|\bspec/\w+\.md"
    r"|\bthe (?:\w+ )?guides\b|\bthe (?:\w+ )?guide's\b|\bthe guide (?:says|promises)"
    r"|\b(?:original|TensorBoard|debugging|stability) guides?\b"
    r"|\bthe (?:\w+ )?fork\b|\bfork's\b"
)
"""Private names of source material. A random seed, a preset called `seeds` and a run's own guide are none of it."""
SUFFIXES = {".py", ".md", ".toml", ".c", ".h", ".js", ".css", ".html", ".yml", ".sh", ".json"}
HISTORY = "CHANGELOG.md"


def unreadable(text: str) -> list[str]:
    return UNREADABLE.findall(" ".join(text.split()))


@pytest.mark.parametrize(
    "text",
    [
        "the seeds' numbers",
        "as in the\n    seeds.",
        "seed 004 (a guide)",
        "see design/observability.md, fact 6",
        "spec/sugar.md, section 0",
        "the guide's frame PSNR",
        "in the words of the guides",
        "what the PMNI fork did",
    ],
)
def test_a_citation_that_nobody_can_open_is_seen(text):
    assert unreadable(text)


@pytest.mark.parametrize(
    "text",
    [
        "runs that differ in nothing but the seed",
        "`--preset seeds` begins there",
        "over twelve seeds: the median",
        "the guide that TensorBoard shows (`Training_Guide`)",
        "https://git-lfs.github.com/spec/v1",
        "SuGaR or one of its forks",
    ],
)
def test_other_words_are_left_alone(text):
    assert unreadable(text) == []


def test_every_text_of_the_repository_cites_what_can_be_opened(root):
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout: nothing says which files belong to the repository")
    files = [root / name for name in listing.stdout.split("\0") if name and name != HISTORY]
    texts = [
        file
        for file in files
        if (file.suffix in SUFFIXES or file.name == "Makefile") and file.is_file() and file != Path(__file__)
    ]
    found = {file.relative_to(root).as_posix(): unreadable(file.read_text()) for file in texts}
    assert {name: words for name, words in found.items() if words} == {}
