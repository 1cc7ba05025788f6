"""The text that a run shows beside its charts: what happens when in this run, and what to look at first."""

from collections.abc import Iterator

from fieldwatch.recon.pipelines.splats.schedule import Plan

_WHAT_TO_LOOK_AT = (
    ("Test/psnr", "held-out photos; compare it with Test/train_psnr, and look at the pictures Test/worst_views"),
    ("Loss components", "each term before its weight; a term outside its window is absent, not zero"),
    ("Population/*", "transparent, giant, needle and unseen Gaussians: each has a rule with a bound"),
    ("Model/size", "the number of Gaussians; `fieldwatch growth RUN` lists every growth, prune and reset"),
    ("Memory", "what is allocated and whose it is; a rule says before it runs out"),
)


def training_guide(plan: Plan) -> str:
    """Return the guide of one run as Markdown."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"# Steps {plan.first} to {plan.total - 1}"
    yield from ("", "| phase | steps |", "|---|---|")
    yield from (f"| {phase.name} | {_span(phase.window.first, phase.window.last)} |" for phase in plan.phases)
    yield from ("", "| loss term | steps |", "|---|---|")
    yield from (f"| `{term}` | {_span(window.first, window.last)} |" for term, window in plan.windows.items())
    yield ""
    schedule = plan.densification
    if schedule is not None:
        yield f"- Gaussians grow after steps {schedule.first - 1} to {schedule.last - 1}, every {schedule.every}."
        if schedule.reset_every:
            yield f"- Opacities are reset every {schedule.reset_every} steps: the loss rises then, and comes back."
    if plan.prune_after is not None:
        yield f"- Transparent Gaussians go after step {plan.prune_after}."
    yield f"- Held-out photos are evaluated after {', '.join(map(str, sorted(plan.tests)))} steps."
    yield from (f"- {note}." for note in plan.notes)
    yield from ("", "# What to look at", "")
    yield from (f"- **{name}**: {what}." for name, what in _WHAT_TO_LOOK_AT)


def _span(first: int, last: int | None) -> str:
    return f"{first} to {'the end' if last is None else last}"
