"""The page about rules, made from the rules themselves."""

import inspect
from collections.abc import Iterator, Mapping, Sequence

from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules import GENERAL, RULES
from fieldwatch.health.threshold import thresholds_of

_HEAD = """# Health rules

Every threshold is declared in the rule that uses it, with its unit, the reason for its value, and its source. To change
one, give it to the rule: `GradientExploding(high=50.0)`. Warm-up, patience and windows count recordings of the metric
(steps for a per-step metric, epochs or evaluations for others) and start again at every phase border. A finding's step
is the first one at which its condition had held for the rule's patience.
"""


def rules_markdown(pipelines: Mapping[str, Sequence[HealthRule]]) -> str:
    """Return the page: per rule what it sees, what to do, and its thresholds.

    Args:
        pipelines: the rules of each pipeline, by the pipeline's name.
    """
    general = set(RULES)
    page = [_HEAD, "## General rules", ""]
    for rule in sorted(RULES, key=_name):
        page.extend(_section(rule, _users(rule, pipelines)))
    for pipeline, members in pipelines.items():
        page += [f"## Rules of {pipeline} runs", ""]
        for rule in sorted({type(member) for member in members} - general, key=_name):
            page.extend(_section(rule, ""))
    return "\n".join(page)


def _name(rule: type[HealthRule]) -> str:
    return rule.__name__


def _users(rule: type[HealthRule], pipelines: Mapping[str, Sequence[HealthRule]]) -> str:
    """Return where a rule of the toolkit applies: in every run, or in those of some pipelines."""
    if any(type(member) is rule for member in GENERAL):
        return "every run"
    return ", ".join(name for name, members in pipelines.items() if any(isinstance(member, rule) for member in members))


def _section(rule: type[HealthRule], users: str) -> Iterator[str]:
    sees = (inspect.getdoc(rule) or "").partition("\n")[0]
    yield from (f"### {rule.__name__}", "", sees, "")
    if rule.reported_as:
        yield from (
            f"A variant of [{rule.reported_as}](#{rule.reported_as.lower()}), whose name its findings carry.",
            "",
        )
    used = f" *In:* {users}." if users else ""
    yield from (f"`{rule.__module__}`. *Severity:* {rule.severity}.{used} *Remedy:* {rule.remedy}", "")
    yield from (*_thresholds(rule), "")


def _thresholds(rule: type[HealthRule]) -> list[str]:
    """Return the table of the thresholds; for a variant, of those that differ."""
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
    """Escape what would end a cell of a Markdown table."""
    return text.replace("|", "&#124;")
