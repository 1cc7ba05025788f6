"""Rewrite the generated pages and drawings; with --check, only report whether they are current."""

import sys
from pathlib import Path

import drawings
import limits_page
import public_names
import rule_scores

from fieldwatch.health import rules_markdown
from fieldwatch.record import TOOLKIT
from fieldwatch.registry import installed_pipelines

ROOT = Path(__file__).resolve().parent.parent
HEAD = "<!-- Made by docs/generate.py; change the declarations, not this page. -->\n\n"


def pages() -> dict[str, str]:
    """Return the content of every generated file by its path in the repository."""
    pipelines = [pipeline for pipeline in installed_pipelines() if not pipeline.trained_by]
    catalogues = {each.name.capitalize(): each.load("metrics") for each in pipelines}
    catalogues = {"Every run": TOOLKIT, **catalogues}
    rules = rules_markdown({each.name: each.load("rules") for each in pipelines})
    rules = rule_scores.with_scores(rules, rule_scores.stored_scores())
    sections = "\n\n".join(f"## {title}\n\n{catalogue.markdown()}" for title, catalogue in catalogues.items())
    metrics = f"{HEAD}# Metrics\n\nA metric's name is its TensorBoard tag. `<...>` stands for any name.\n\n{sections}\n"
    return {
        "docs/api.md": f"{HEAD}{public_names.page()}",
        "docs/limits.md": f"{HEAD}{limits_page.current()}",
        "docs/metrics.md": metrics,
        "docs/rules.md": f"{HEAD}{rules.rstrip()}\n",
        "docs/pictures/rooms.svg": drawings.rooms(),
        "docs/pictures/step.svg": drawings.step_path(),
    }


def main() -> int:
    """Write the files, or compare them with ``--check``."""
    wanted = pages()
    stale = [name for name, text in wanted.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    if "--check" in sys.argv:
        sys.stdout.write(f"stale: {', '.join(stale)}; run: make docs\n" if stale else "current\n")
        return int(bool(stale))
    for name in stale:
        (ROOT / name).write_text(wanted[name])
        sys.stdout.write(f"wrote {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
