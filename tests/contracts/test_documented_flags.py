"""What the pages say to type exists: commands, flags, rules; the flags come from the commands themselves."""

import re
import shlex
from functools import cache

import pytest

from fieldwatch.cli.commands import all_commands, flags_of
from fieldwatch.cli.completion_table import completed_flags
from fieldwatch.recon.commands.migrate import mesh, sugar, video

ORIGINALS = {
    "train splats": {*sugar.ORIGINAL_FLAGS, *sugar._OUR_SWITCHES, *sugar._SWITCHES, *sugar._MESH_SWITCHES},
    "train video": set(video.ORIGINAL_FLAGS),
    "mesh extract": set(mesh.EXTRACT_ORIGINALS),
    "mesh refine": set(mesh.REFINE_ORIGINALS),
}
"""Flags of the original scripts that commands take beside their own."""
_BLOCK = re.compile(r"^(```+)[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)


@cache
def known_flags():
    """Flags of every command."""
    return {name: completed_flags(flags_of(name)) for name in all_commands()}


def lines_to_type(page):
    """Lines of a page's blocks of code, those that go on joined, and its pieces of code within the text."""
    blocks = [block for _, block in _BLOCK.findall(page)]
    rest = _BLOCK.sub("", page)
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    return [*lines, *re.findall(r"`([^`\n]+)`", rest)]


def calls(page):
    """Words after `fieldwatch` of every line to type."""
    for line in lines_to_type(page):
        found = re.match(r"(?:\w+=\S+ |torchrun .*-m |python -m |\$ )*fieldwatch (?P<rest>[a-z].*)", line.strip())
        if found:
            rest = re.sub(r" (--|[|>]) .*| [&;]+.*|\s#\s.*", "", found["rest"] + " ").replace("...", "")
            yield line, shlex.split(rest.replace("'", "").replace('"', ""))


def fault_of(words, flags):
    """What is wrong with a call; empty if nothing."""
    if words[0] == "migrate":  # the line of another program
        return ""
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in flags), None)
    meant = [known for known in flags if known == name or (name is None and known.split()[0] == words[0])]
    if not meant:
        return "no such command"
    known = {flag.name for command in meant for flag in flags[command]}.union(*(ORIGINALS.get(m, set()) for m in meant))
    given = {
        re.split(r"[=\]]", word.lstrip("["))[0].rstrip(",.") for word in words if re.match(r"\[?--?[a-zA-Z]", word)
    }
    strange = {flag for flag in given if flag not in known and "--" + flag[2:].replace("_", "-") not in known}
    return f"no such flag: {', '.join(sorted(strange))}" if strange else ""


@pytest.fixture(scope="module")
def pages(root):
    found = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return {page.name: page.read_text() for page in found}


def test_a_wrong_command_and_a_wrong_flag_are_seen():
    page = "`fieldwatch helth RUN`\n\n```\nfieldwatch health RUN --jsn \\\n  --json  # why --not\n```\n"
    faults = [fault_of(words, known_flags()) for _, words in calls(page)]
    assert faults == ["no such flag: --jsn", "no such command"]


def test_every_command_and_flag_that_is_written_exists(pages):
    flags = known_flags()
    seen = [(name, line, fault_of(words, flags)) for name, page in pages.items() for line, words in calls(page)]
    assert len(seen) > 150
    assert [(name, line, fault) for name, line, fault in seen if fault] == []


def test_every_command_and_flag_of_the_example_scripts_exists(root):
    scripts = {path.name: path.read_text() for path in (root / "examples").glob("*.sh")}
    lines = [re.sub(r'"\$\{?fieldwatch\}?"', "fieldwatch", text) for text in scripts.values()]
    found = [call for text in lines for call in calls(f"```\n{text}\n```\n")]
    assert len(found) > 5
    assert [(line, fault) for line, words in found if (fault := fault_of(words, known_flags()))] == []


def test_every_rule_has_a_symptom_and_every_symptom_a_rule_that_exists(pages):
    sections = re.split(r"^### ", pages["rules.md"], flags=re.MULTILINE)[1:]
    rules = {section.split("\n")[0] for section in sections if "\nA variant of " not in section}
    linked = re.findall(r"\[(\w+)\]\(rules\.md#(\w+)\)", pages["troubleshooting.md"])
    assert len(rules) > 40
    assert {name for name, _ in linked} == rules
    assert [name for name, place in linked if place != name.lower()] == []


def test_every_symptom_says_what_to_do(pages):
    entries = re.split(r"^### ", pages["troubleshooting.md"], flags=re.MULTILINE)[1:]
    assert len(entries) > 40
    assert [entry.splitlines()[0] for entry in entries if not entry.startswith('"') or "\n* " not in entry] == []
