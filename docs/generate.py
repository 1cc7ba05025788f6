"""Rewrites the generated pages: docs/metrics.md and docs/rules.md. With --check, only says whether they are current."""

import sys
from pathlib import Path

from fieldwatch.health import rules_markdown
from fieldwatch.pipelines.splats import SPLATS_METRICS
from fieldwatch.pipelines.video import VIDEO_METRICS
from fieldwatch.record import TOOLKIT

DOCS = Path(__file__).parent
HEAD = "<!-- Made by docs/generate.py; change the declarations, not this page. -->\n\n"


def pages() -> dict[str, str]:
    """Every generated page, by its name."""
    metrics = (
        f"{HEAD}# Metrics\n\nA metric's name is its TensorBoard tag. `<...>` stands for any name.\n\n"
        f"## Every run\n\n{TOOLKIT.markdown()}\n\n## Splats\n\n{SPLATS_METRICS.markdown()}\n\n"
        f"## Video\n\n{VIDEO_METRICS.markdown()}\n"
    )
    return {"metrics.md": metrics, "rules.md": f"{HEAD}{rules_markdown().rstrip()}\n"}


def main() -> int:
    """Write the pages, or compare them."""
    stale = [name for name, text in pages().items() if not (DOCS / name).exists() or (DOCS / name).read_text() != text]
    if "--check" in sys.argv:
        sys.stdout.write(f"stale: {', '.join(stale)}; run: make docs\n" if stale else "current\n")
        return int(bool(stale))
    for name in stale:
        (DOCS / name).write_text(pages()[name])
        sys.stdout.write(f"wrote docs/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
