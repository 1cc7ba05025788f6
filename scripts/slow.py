"""Rewrite tests/slow.txt, the list of tests that `make quick` skips. `make slow` calls this script.

It reads the durations of a run of all tests (pytest's ``--junitxml``). A function is slow if all its cases together
took longer than the limit. A file with only slow functions is listed as a whole, and is then not even imported.

The first test that uses a shared fixture pays for it. Once that one is skipped, the next one pays: with ``--add``, the
report is one of `make quick`, and what is slow there joins the list.
"""

import argparse
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
ALWAYS_SLOW = ["stories"]
DEFAULT_LIMIT = 0.12


def durations(report: Path) -> dict[str, dict[str, float]]:
    """Return the duration of each test function in seconds, by file."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  the file is pytest's own
        file = case.attrib["classname"].removeprefix("tests.").replace(".", "/") + ".py"
        if not (TESTS / file).is_file():
            raise SystemExit(f"{report} names {file}, which is not in tests/")
        found[file][case.attrib["name"].partition("[")[0]] += float(case.attrib["time"])
    return found


def slow_entries(found: dict[str, dict[str, float]], limit: float) -> list[str]:
    """Return the lines of slow.txt: folders, files, and functions as file::function."""
    entries = list(ALWAYS_SLOW)
    for file, functions in found.items():
        if any(file.startswith(f"{folder}/") for folder in ALWAYS_SLOW):
            continue
        slow = [name for name, seconds in functions.items() if seconds > limit]
        entries += [file] if len(slow) == len(functions) else [f"{file}::{name}" for name in slow]
    return sorted(entries)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="what pytest wrote with --junitxml")
    parser.add_argument(
        "--limit", type=float, default=DEFAULT_LIMIT, help="seconds that a function may take (%(default)g)"
    )
    parser.add_argument("--add", action="store_true", help="keep what is listed: the report is one of `make quick`")
    options = parser.parse_args()
    listed = TESTS / "slow.txt"
    entries = set(slow_entries(durations(options.report), options.limit))
    if options.add:
        entries |= set(listed.read_text().splitlines())
    listed.write_text("\n".join(sorted(entries)) + "\n")
    print(f"tests/slow.txt: {len(entries)} entries over {options.limit:g} s")
