"""Generates the documentation page of the health rules from their declarations."""

import inspect
from collections.abc import Iterator, Mapping, Sequence

from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules import GENERAL, RULES
from fieldwatch.health.thresholds import thresholds_of

_HEAD = """# Health rules

Each rule declares its thresholds with a unit, the reason for the default and its source. To change a threshold, pass
it to the rule: `GradientExploding(high=50.0)`. Warm-up, patience and windows count recordings of the metric (steps for
a per-step metric, epochs or evaluations for others) and restart at every phase border. The step of a finding is the
first one at which its condition had held for the rule's patience.
"""


def rules_markdown(pipelines: Mapping[str, Sequence[HealthRule]]) -> str:
    """Return the page as Markdown: the condition, remedy and thresholds of every rule.

    Args:
        pipelines: rules of each pipeline, by the name of the pipeline.
    """
    general = set(RULES)
    page = [_HEAD, "## General rules", ""]
    for rule in sorted(RULES, key=_name):
        page.extend(_section(rule, _users(rule, pipelines)))
    for pipeline, members in pipelines.items():
        page += [f"## Rules of {pipeline} runs", ""]
        # A pipeline lists general rules too; they already have their section.
        for rule in sorted({type(member) for member in members} - general, key=_name):
            page.extend(_section(rule, ""))
    return "\n".join(page)


def _name(rule: type[HealthRule]) -> str:
    return rule.__name__


def _users(rule: type[HealthRule], pipelines: Mapping[str, Sequence[HealthRule]]) -> str:
    """Return where a general rule applies: in every run, or in the runs of the pipelines that use it."""
    if any(type(member) is rule for member in GENERAL):
        return "every run"
    return ", ".join(name for name, members in pipelines.items() if any(isinstance(member, rule) for member in members))


def _section(rule: type[HealthRule], users: str) -> Iterator[str]:
    summary = (inspect.getdoc(rule) or "").partition("\n")[0]
    yield from (f"### {rule.__name__}", "", summary, "")
    if rule.reported_as:
        yield from (
            f"A variant of [{rule.reported_as}](#{rule.reported_as.lower()}), and reported under that name.",
            "",
        )
    used = f" *In:* {users}." if users else ""
    yield from (f"`{rule.__module__}`. *Severity:* {rule.severity}.{used} *Remedy:* {rule.remedy}", "")
    yield from (*_thresholds(rule), "")


def _thresholds(rule: type[HealthRule]) -> list[str]:
    """Return the table of thresholds; for a variant, only those that it overrides."""
    declared = inspect.get_annotations(rule)
    listed = {name: about for name, about in thresholds_of(rule).items() if name in declared or not rule.reported_as}
    if not listed:
        return ["No thresholds."]
    rows = [
        f"| `{name}` | {about.value:g} | {_cell(about.unit)} | {_cell(about.reason)} | {_cell(about.source)} |"
        for name, about in listed.items()
    ]
    return ["| threshold | value | unit | reason | source |", "|---|---|---|---|---|", *rows]


def _cell(text: str) -> str:
    """Escape the pipe, which would end a cell of a Markdown table."""
    return text.replace("|", "&#124;")
