"""Guide shown next to a run's charts: the schedule of the run and the most important metrics."""

from collections.abc import Iterator

from fieldwatch.recon.pipelines.splats.schedule import Plan

_WHAT_TO_LOOK_AT = (
    ("Test/psnr", "quality on held-out photos; compare it with Test/train_psnr and inspect Test/worst_views"),
    ("Loss components", "unweighted loss terms; a term outside its window is absent, not zero"),
    ("Population/*", "transparent, giant, needle-shaped and never visible Gaussians; a health rule watches each"),
    ("Model/size", "number of Gaussians; `fieldwatch growth RUN` lists every densification, prune and reset"),
    ("Memory", "allocated memory by owner; a health rule warns before it runs out"),
)


def training_guide(plan: Plan) -> str:
    """Return the guide of a run as Markdown."""
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
        yield f"- Densification: after steps {schedule.first - 1} to {schedule.last - 1}, every {schedule.every} steps."
        if schedule.reset_every:
            yield f"- Opacities are reset every {schedule.reset_every} steps; the loss rises briefly after each reset."
    if plan.prune_after is not None:
        yield f"- Transparent and hidden Gaussians are pruned after step {plan.prune_after}."
    yield f"- Held-out photos are evaluated after {', '.join(map(str, sorted(plan.tests)))} steps."
    yield from (f"- {note}." for note in plan.notes)
    yield from ("", "# Metrics to watch", "")
    yield from (f"- **{name}**: {what}." for name, what in _WHAT_TO_LOOK_AT)


def _span(first: int, last: int | None) -> str:
    return f"{first} to {'the end' if last is None else last}"
