"""Panels of a replay's page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fieldwatch.base import nbytes, percent
from fieldwatch.report.page import Panel, facts, group, lines, slug, table
from fieldwatch.report.replay.sentences import Result, operation_of, pass_sentence, place_of, values_of

Series = dict[str, dict[str, Any]]
MIB = 2**20


def not_finite_panel(result: Result) -> Panel:
    """Return the first operation that produced a value that is not finite, with its stack, and the others."""
    trace = result["trace"]
    if trace is None:
        return group("not-finite", "First value that is not finite", "", [], "The step was not reached.")
    parts: list[Panel] = []
    first = trace["first"]
    if first is not None:
        pairs = [
            ("operation", operation_of(first)),
            ("module", first["module"]),
            ("line", place_of(first["stack"])),
            ("result", values_of(first["result"])),
            *((f"input {k}", values_of(one)) for k, one in enumerate(first["inputs"], 1)),
            ("reached", ", ".join(first["reached"])),
        ]
        of_forward = "; the line and the stack are those of its forward operation" if first["node"] else ""
        about = f"The first operation whose value made a loss or a gradient not finite{of_forward}."
        parts += [facts("The operation", pairs, about), _stack("Stack", first["stack"])]
    if trace["error"] is not None:
        pairs = [("exception", trace["error"]["type"]), ("message", trace["error"]["message"])]
        parts += [
            facts("Exception", pairs, "It ended the step."),
            _stack("Stack of the exception", trace["error"]["stack"]),
        ]
    if trace["others"]:
        rows = [
            {
                "operation": operation_of(one),
                "line": place_of(one["stack"]),
                "module": one["module"],
                "result": values_of(one["result"]),
                "reached": ", ".join(one["reached"]) or ("on purpose" if one["on_purpose"] else "nothing"),
            }
            for one in trace["others"]
        ]
        columns = (("operation", "operation", False), ("line", "line", False), ("module", "module", False))
        columns += (("result", "result", False), ("reached", "reached", False))
        about = f"{trace['others_in_all']} other operations made such values from finite ones."
        parts.append(table("Other operations", columns, rows, about))
    why = f"All values of {trace['operations']:,} operations were finite, forward and backward."
    about = f"{trace['operations']:,} operations were looked at, forward and backward."
    return group("not-finite", "First value that is not finite", about, parts, why)


def terms_panel(result: Result) -> Panel:
    """Return the gradients of every loss term by group, and the cosines between terms."""
    terms = result["terms"]
    about = "The gradient of each weighted loss term on its own, by group of parameters."
    if terms is None or not terms["terms"]:
        why = "The step has no loss terms: its loop needs Terms(...), and step.observe(...) or step.backward(...)."
        return group("terms", "Loss terms", about, [], why)
    columns = (("term", "term", False), ("weight", "weight", True), ("value", "value", True))
    parts = [
        table("Terms", (*columns, ("weighted", "weight times value", True)), terms["terms"], "Values at this step.")
    ]
    norms = [{"group": each["group"], **term} for each in terms["groups"] for term in each["terms"]]
    columns = (("group", "group", False), ("term", "term", False), ("norm", "norm of its gradient", True))
    columns += (("cosine_to_total", "cosine to the sum", True), ("not_finite", "entries not finite", True))
    parts.append(table("Gradient norms", columns, norms, "A term with the largest norm decides the direction."))
    pairs = [
        {"group": each["group"], "one": pair["terms"][0], "other": pair["terms"][1], "cosine": pair["cosine"]}
        for each in terms["groups"]
        for pair in each["pairs"]
    ]
    if pairs:
        pairs.sort(key=lambda row: row["cosine"] if isinstance(row["cosine"], float) else 2.0)
        columns = (("group", "group", False), ("one", "term", False), ("other", "other term", False))
        about_pairs = "1: they pull alike; 0: they do not touch each other; -1: they oppose each other."
        parts.append(table("Agreement", (*columns, ("cosine", "cosine", True)), pairs, about_pairs))
    return group("terms", "Loss terms", about, parts, "")


def passes_panel(result: Result, series: Series) -> Panel:
    """Return the unmodified step beside the interventions: loss, norms, update."""
    about = "The same step from the same state: as trained, and with each intervention."
    rows = [
        {
            "name": one["name"],
            "loss": _loss(one, result["step"]),
            "gradient": one["gradient_norm"],
            "refused": "refused" if one["refused"] else "",
            "broken": ", ".join(one["not_finite"]),
            "after": one["losses"][-1]["loss"] if len(one["losses"]) > 1 else None,
            "what": pass_sentence(one) if one["error"] is not None else "",
        }
        for one in result["passes"]
    ]
    last = max((row["step"] for one in result["passes"] for row in one["losses"]), default=result["step"])
    columns = (("name", "pass", False), ("loss", "loss", True), ("gradient", "gradient norm", True))
    columns += (("refused", "update", False), ("broken", "not finite in", False))
    columns += (("after", f"loss of step {last}", True), ("what", "ended by", False))
    parts = [table("Passes", columns, rows, about)] if rows else []
    updates = [{"name": one["name"], **one["update"]} for one in result["passes"] if one["update"]]
    if updates:
        groups = dict.fromkeys(name for one in updates for name in one if name != "name")
        heads = (("name", "pass", False), *((name, name, True) for name in groups))
        parts.append(table("Size of the update", heads, updates, "Euclidean norm of the change, by group."))
    names = {f"loss {one['name']}": one for one in result["passes"] if len(one["losses"]) > 1}
    for name, one in names.items():
        points = [(row["step"], row["loss"]) for row in one["losses"]]
        series[name] = _series(points, f"loss, {one['name']}", "step")
    if names:
        labels = {name: str(one["name"]) for name, one in names.items()}
        parts.append(lines("Loss afterwards", list(names), "Loss of this step and the steps after it.", labels=labels))
    return group("passes", "What would have happened", about, parts, "The step was not made.")


def samples_panel(result: Result) -> Panel:
    """Return the samples with the largest part of the loss."""
    columns = (("sample", "sample", False), ("loss", "loss", True), ("share", "share of the loss", True))
    rows = result["samples"]
    why = "The step names no samples: pass samples=... to step.backward, or sample=... to step.observe."
    about = "Samples of this step, those with the largest loss first."
    parts = [table("Samples", columns, rows, about)] if rows else []
    return group("samples", "Samples", about, parts, why)


def memory_panel(result: Result) -> Panel:
    """Return the memory that each line of code allocated in the step."""
    trace = result["trace"]
    memory = None if trace is None else trace["memory"]
    about = "New memory by the line that allocated it; in the backward pass by the line of the forward operation."
    if memory is None or not memory["lines"]:
        return group("memory", "Memory", about, [], "No operation of the step allocated memory.")
    rows = [
        {
            "line": f"{row['file']}:{row['line']}",
            "function": row["function"],
            "phase": row["phase"],
            "peak": _mib(row["at_peak"]),
            "bytes": _mib(row["bytes"]),
            "storages": row["storages"],
        }
        for row in memory["lines"]
    ]
    columns = (("line", "line", False), ("function", "function", False), ("phase", "part", False))
    columns += (
        ("peak", "alive at the peak, MiB", True),
        ("bytes", "allocated, MiB", True),
        ("storages", "tensors", True),
    )
    pairs = [("peak of live memory of the step", nbytes(memory["peak"]))]
    pairs += [("allocated in all", nbytes(memory["allocated"]))]
    parts = [facts("Step", pairs, "Memory that operations of torch allocated since the step began.")]
    parts.append(table("Lines", columns, rows, about))
    return group("memory", "Memory", about, parts, "")


def groups_panel(result: Result, series: Series) -> Panel:
    """Return histograms and quantiles of every group before and after the update."""
    about = "Parameters before and after the update, and their gradients."
    parts: list[Panel] = []
    rows: list[dict[str, Any]] = []
    quantiles: dict[str, None] = {}
    for each in result["groups"]:
        for what in ("before", "after", "gradient"):
            if what not in each:
                continue
            known = each[what]
            quantiles |= dict.fromkeys(known["quantiles"])
            change = each.get("change") if what == "after" else None
            facts_of = {key: known[key] for key in ("entries", "norm", "mean", "nan", "inf")}
            rows.append({"group": each["group"], "what": what, **facts_of, "change": change, **known["quantiles"]})
        parts += list(_histograms(each, series))
    columns = (
        ("group", "group", False),
        ("what", "values", False),
        ("entries", "entries", True),
        ("norm", "norm", True),
    )
    columns += (
        ("change", "norm of the update", True),
        ("nan", "NaN", True),
        ("inf", "inf", True),
        ("mean", "mean", True),
    )
    columns += tuple((name, _quantile(name), True) for name in quantiles)
    if rows:
        parts.insert(0, table("Quantiles", columns, rows, about))
    return group("groups", "Parameters", about, parts, "No groups are watched: call run.track(name=module).")


def equality_panel(result: Result) -> Panel:
    """Return the comparison with the record of the run."""
    equality = result["equality"]
    about = "Every replayed step against the journal, and every reached checkpoint against the stored one, to the bit."
    pairs: list[tuple[str, Any]] = [
        ("steps compared", equality["steps"]),
        ("first and last step", f"{equality['first']} to {equality['last']}" if equality["steps"] else ""),
        ("values compared", equality["values"]),
        ("steps without a row in the journal", ", ".join(map(str, equality["not_recorded"]))),
        ("the step repeated itself", "no" if result["repeats"]["differing"] else "yes, to the bit"),
    ]
    pairs += [(f"likely reason {k}", reason) for k, reason in enumerate(equality["reasons"], 1)]
    pairs += [(f"here: {name}", str(value)) for name, value in result["machine"].items()]
    parts = [facts("Comparison", pairs, about)]
    if equality["ended"] is not None:
        columns = (("metric", "metric", False), ("recorded", "recorded", True), ("replayed", "replayed", True))
        first = f"Values that differ at step {equality['ended']['step']}, the first step that differs."
        parts.append(table("First difference", columns, equality["ended"]["values"], first))
    if equality["checkpoints"]:
        rows = [{**row, "unequal": ", ".join(row["unequal"])} for row in equality["checkpoints"]]
        columns = (("step", "step", True), ("values", "values", True), ("count", "different", True))
        parts.append(table("Checkpoints", (*columns, ("unequal", "which", False)), rows, "State after these steps."))
    if equality["differences"]:
        columns = (("what", "what", False), ("recorded", "in the run", False), ("here", "here", False))
        parts.append(
            table("Machine", columns, equality["differences"], "What differs from the process that trained it.")
        )
    return group("equality", "Equality with the run", about, parts, "")


def difference_panel(one: Result, other: Result) -> Panel:
    """Return the differences between two replayed steps: terms, gradients, parameters, memory by line."""
    heads = (("one", f"step {one['step']}", True), ("other", f"step {other['step']}", True), ("ratio", "ratio", True))
    about = f"Step {one['step']} against step {other['step']}."
    parts: list[Panel] = []
    for title, name, first, second in (
        ("Loss terms", "term", _terms(one), _terms(other)),
        ("Gradient norm by group and term", "gradient", _norms(one), _norms(other)),
        ("Largest absolute parameter by group", "group", _sizes(one), _sizes(other)),
        ("Bytes at the peak by line", "line", _lines(one), _lines(other)),
    ):
        keys = [key for key in dict.fromkeys((*first, *second)) if first.get(key) != second.get(key)]
        if keys:
            ratios = {key: _ratio(first.get(key), second.get(key)) for key in keys}
            keys.sort(key=lambda key: -_distance(ratios[key]))
            rows = [{name: key, "one": first.get(key), "other": second.get(key), "ratio": ratios[key]} for key in keys]
            parts.append(table(title, ((name, name, False), *heads), rows, "The largest ratio first."))
    return group("difference", "Difference", about, parts, "The two steps have the same figures.")


def _stack(title: str, stack: Sequence[Mapping[str, Any]]) -> Panel:
    text = "\n".join(
        f'File "{f["file"]}", line {f["line"]}, in {f["function"]}\n    {f["text"]}' for f in reversed(stack)
    )
    about = "The innermost line is the last; lines of torch and of fieldwatch are left out."
    return {"id": slug(title), "title": title, "kind": "text", "about": about, "text": text or "no line of the loop"}


def _histograms(each: Mapping[str, Any], series: Series) -> Iterator[Panel]:
    name = each["group"]
    for title, kinds, edges in (
        (f"{name}: parameters", ("before", "after"), each["edges"]),
        (f"{name}: gradient", ("gradient",), each.get("gradient_edges")),
    ):
        kept = [kind for kind in kinds if kind in each and sum(each[kind]["counts"])]
        if not kept or edges is None:
            continue
        centers = [(low + high) / 2 for low, high in pairwise(edges)]
        labels: dict[str, str] = {}
        for kind in kept:
            key = f"{title} {kind}"
            labels[key] = kind
            points = list(zip(centers, each[kind]["counts"], strict=True))
            series[key] = _series(points, f"entries of {name} per bin, {kind}", f"value of {title}")
        yield lines(title, list(labels), "Number of entries by their value, in 40 bins.", labels=labels)


def _series(points: Sequence[tuple[float, Any]], meaning: str, axis: str) -> dict[str, Any]:
    """Return a series in the form of the account."""
    known = [(x, y) for x, y in points if isinstance(y, int | float)]
    least = min(known, key=lambda point: point[1], default=(None, None))
    most = max(known, key=lambda point: point[1], default=(None, None))
    bad = [x for x, y in points if not isinstance(y, int | float)]
    found: dict[str, Any] = {
        "unit": "",
        "meaning": meaning,
        "better": "",
        "axis": axis,
        "rows": len(points),
        "x": [x for x, _ in points],
        "y": [y if isinstance(y, int | float) else None for _, y in points],
        "bad": bad,
        "thinned": False,
        "last": known[-1][1] if known else None,
        "min": [least[1], least[0]],
        "max": [most[1], most[0]],
    }
    return found | ({"bad_count": len(bad), "bad_first": bad[0], "bad_last": bad[-1]} if bad else {})


def _loss(one: Mapping[str, Any], step: int) -> Any:
    return next((row["loss"] for row in one["losses"] if row["step"] == step), None)


def _mib(count: int) -> float:
    return float(f"{count / MIB:.5g}")


def _quantile(name: str) -> str:
    ends = {"0.0": "least", "0.5": "median", "1.0": "largest"}
    return ends.get(name, percent(float(name), 0))


def _terms(result: Result) -> dict[str, Any]:
    return {} if result["terms"] is None else {row["term"]: row["weighted"] for row in result["terms"]["terms"]}


def _norms(result: Result) -> dict[str, Any]:
    groups: Iterable[Mapping[str, Any]] = () if result["terms"] is None else result["terms"]["groups"]
    return {f"{each['group']}, {term['term']}": term["norm"] for each in groups for term in each["terms"]}


def _sizes(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in result["groups"]:
        quantiles = each["before"]["quantiles"]
        if quantiles:
            found[each["group"]] = max(abs(quantiles["0.0"]), abs(quantiles["1.0"]))
    return found


def _lines(result: Result) -> dict[str, Any]:
    rows = () if result["trace"] is None else result["trace"]["memory"]["lines"]
    sums: dict[str, int] = {}
    for row in rows:
        line = f"{row['file']}:{row['line']} ({row['phase']})"
        sums[line] = sums.get(line, 0) + row["at_peak"]
    return sums


def _ratio(one: object, other: object) -> float | None:
    if isinstance(one, int | float) and isinstance(other, int | float) and other:
        return float(f"{one / other:.5g}")
    return None


def _distance(ratio: float | None) -> float:
    """Return how far a ratio is from 1; a value that only one step has comes first."""
    return float("inf") if ratio is None or ratio <= 0 else max(ratio, 1 / ratio)
