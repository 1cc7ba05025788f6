"""Rewrites docs/metrics.md, docs/rules.md and the table of tab completion. With --check: are they current?"""

import sys
from importlib import import_module
from pathlib import Path

from fieldwatch.cli.completion_table import as_stored, flags_of
from fieldwatch.cli.main import COMMANDS
from fieldwatch.health import rules_markdown
from fieldwatch.pipelines.normals import NORMALS_METRICS
from fieldwatch.pipelines.splats import SPLATS_METRICS
from fieldwatch.pipelines.video import VIDEO_METRICS
from fieldwatch.record import TOOLKIT

ROOT = Path(__file__).resolve().parent.parent
HEAD = "<!-- Made by docs/generate.py; change the declarations, not this page. -->\n\n"


def pages() -> dict[str, str]:
    """Every generated file, by its place in the repository."""
    metrics = (
        f"{HEAD}# Metrics\n\nA metric's name is its TensorBoard tag. `<...>` stands for any name.\n\n"
        f"## Every run\n\n{TOOLKIT.markdown()}\n\n## Splats\n\n{SPLATS_METRICS.markdown()}\n\n"
        f"## Normals\n\n{NORMALS_METRICS.markdown()}\n\n## Video\n\n{VIDEO_METRICS.markdown()}\n"
    )
    return {
        "docs/metrics.md": metrics,
        "docs/rules.md": f"{HEAD}{rules_markdown().rstrip()}\n",
        "src/fieldwatch/cli/completion.json": completions(),
    }


def completions() -> str:
    """Every command's flags, asked of the commands themselves."""
    modules = {name: import_module(f"fieldwatch.cli.{command.module}") for name, command in COMMANDS.items()}
    return as_stored({name: flags_of(module.run) for name, module in modules.items()}).decode()


def main() -> int:
    """Write the files, or compare them."""
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
