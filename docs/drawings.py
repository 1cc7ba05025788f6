"""The two drawings of docs/architecture.md, as SVG: the rooms of the package, and the path of one step."""

from collections.abc import Sequence
from html import escape

_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1f2933}.small{font-size:12px;fill:#52606d}"
    ".box{fill:#fff;stroke:#7b8794}.user{fill:#e3f8f4;stroke:#147d64}.disk{fill:#fff8e6;stroke:#b7791f}"
    ".line{stroke:#52606d;fill:none;marker-end:url(#tip)}"
)
_TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#52606d"/></marker>'
)

ROOMS: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (
    ("your package", (("your loop, rules, sinks, pipeline", "user"),)),
    ("recon: the domain", (("commands", "box"), ("pipelines: splats, normals, video", "box"))),
    ("its parts", (("data", "box"), ("mesh", "box"), ("render", "box"), ("losses", "box"), ("geometry", "box"))),
    ("frameworks", (("adapters: Lightning, Transformers, Accelerate", "box"),)),
    ("public surface", (("fieldwatch  .pipeline  .rules  .files  .lazy  .cli.kit", "user"),)),
    ("command line", (("cli", "box"), ("many", "box"))),
    ("reading a run (no torch)", (("report", "box"), ("registry", "box"))),
    ("a live run", (("replay", "box"), ("run", "box"), ("monitor (no torch)", "box"))),
    ("what a run uses", (("checkpoint", "box"), ("guard", "box"), ("measure", "box"), ("health (no torch)", "box"))),
    ("the record (no torch)", (("record", "disk"), ("base", "box"))),
)
"""Floors of the package from the top, each with its rooms: imports point downwards, or to the right."""

STEP: Sequence[tuple[str, str, str]] = (
    ("step.backward(objective, batch)", "zero_grad, your loss terms, backward", "user"),
    ("step.update(optimizer)", "guard: finite? then the optimizer's step, else refused and counted", "box"),
    ("end of the step", "one fused copy of its values into a ring on the device; no wait for the device", "box"),
    ("every 64 steps or 1 s", "the ring's rows go to the writer thread as one block", "box"),
    ("journal.jsonl", "appended first: the store that everything else is derived from", "disk"),
    ("sinks: log, TensorBoard, CSV ...", "each gets the block", "box"),
    ("rules", "look at the history; a finding goes to events.jsonl and log.txt", "box"),
    ("watch, report, compare, health", "other processes, which read the files; without torch", "user"),
)
"""What happens to one step, in order: where, what, and the kind of box."""


def _svg(width: int, height: int, body: str, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><style>{_STYLE}</style><defs>{_TIP}</defs>'
        f'<rect width="{width}" height="{height}" rx="8" fill="#f5f7fa"/>{body}</svg>\n'
    )


def _box(place: tuple[float, float, float, float], kind: str, lines: Sequence[tuple[str, str]]) -> str:
    x, y, width, height = place
    text = "".join(
        f'<text class="{style}" x="{x + width / 2:g}" y="{y + height / 2 + 5 + 18 * (i - (len(lines) - 1) / 2):g}" '
        f'text-anchor="middle">{escape(line)}</text>'
        for i, (line, style) in enumerate(lines)
    )
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>{text}'


def rooms() -> str:
    """Draw the floors of the package."""
    left = 190
    width = 620
    step = 56
    height = 40
    body = ""
    for i, (floor, names) in enumerate(ROOMS):
        y = 16 + step * i
        body += f'<text class="small" x="16" y="{y + 25}">{escape(floor)}</text>'
        each = (width - 10 * (len(names) - 1)) / len(names)
        for j, (name, kind) in enumerate(names):
            body += _box((left + j * (each + 10), y, each, height), kind, [(name, "")])
    bottom = 16 + step * len(ROOMS)
    body += f'<path class="line" d="M 834 24 V {bottom - 20}"/>'
    turned = f'transform="translate(852 {bottom / 2:g}) rotate(90)"'
    body += f'<text class="small" {turned} text-anchor="middle">imports: downwards, or to the right</text>'
    return _svg(870, bottom, body, "Rooms of fieldwatch: imports point downwards, or to the right")


def step_path() -> str:
    """Draw what happens to one step of a training, from the loop to the reader."""
    left = 40
    width = 620
    step = 76
    height = 54
    body = ""
    for i, (where, what, kind) in enumerate(STEP):
        y = 16 + step * i
        body += _box((left, y, width, height), kind, [(where, ""), (what, "small")])
        if i:
            body += f'<path class="line" d="M {left + width / 2:g} {y - step + height} V {y - 1}"/>'
    return _svg(700, 16 + step * len(STEP), body, "The path of one step")
