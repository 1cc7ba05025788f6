"""What a replay found, in sentences."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldwatch.base import duration, nbytes, number, percent
from fieldwatch.report.page import Level

OPPOSED = -0.2
"""Cosine of two gradients below which their terms disagree."""

Result = Mapping[str, Any]


def place_of(stack: Sequence[Mapping[str, Any]], *, whole: bool = True) -> str:
    """Return the innermost frame of a stack as ``file:line``; empty if there is none.

    Args:
        stack: frames, the innermost first.
        whole: whether to return the path; False returns the name of the file alone.
    """
    if not stack:
        return ""
    file = stack[0]["file"] if whole else Path(stack[0]["file"]).name
    return f"{file}:{stack[0]['line']}"


def operation_of(origin: Mapping[str, Any]) -> str:
    """Return the operation with its part of the step, such as ``aten.div in the backward pass of SqrtBackward0``."""
    if origin["phase"] == "backward":
        return f"{origin['operation']} in the backward pass of {origin['node'] or 'an operation'}"
    return str(origin["operation"])


def values_of(tensor: Mapping[str, Any]) -> str:
    """Return shape, type and range of a tensor, or a number."""
    if "number" in tensor:
        return f"the number {tensor['number']}"
    words = [f"{tensor['dtype']}{tensor['shape']}"]
    if "least" in tensor:
        words.append(f"from {_number(tensor['least'])} to {_number(tensor['largest'])}")
    words += [f"{tensor[kind]} {kind}" for kind in ("nan", "inf") if tensor.get(kind)]
    if "value" in tensor:
        words.append(f"{_number(tensor['value'])} at the first bad entry")
    return ", ".join(words)


def origin_sentence(origin: Mapping[str, Any], *, whole: bool = True) -> str:
    """Return where the first value that is not finite came from, and from which inputs."""
    module = f" in {origin['module']}" if origin["module"] else ""
    where = place_of(origin["stack"], whole=whole)
    at = f" at {where}" if where else ""
    inputs = f", from {'; '.join(map(values_of, origin['inputs']))}" if origin["inputs"] else ""
    return f"{operation_of(origin)}{module}{at}: {values_of(origin['result'])}{inputs}"


def equality_sentence(equality: Mapping[str, Any]) -> str:
    """Return whether the replay equals the record to the bit, and until which step."""
    steps = equality["steps"]
    states = equality["checkpoints"]
    if not steps and not states:
        return "nothing to compare: the run has recorded none of the replayed steps"
    ended = equality["ended"]
    if ended is not None:
        first = ended["values"][0]
        return (
            f"equal to the journal up to step {ended['step'] - 1}, not at step {ended['step']}: {first['metric']} is "
            f"{first['replayed']}, recorded is {first['recorded']}"
        )
    words = [f"equal to the journal to the bit: {steps} steps, {equality['values']} values"] if steps else []
    for state in states:
        if state["count"]:
            words.append(
                f"{state['count']} of {state['values']} values differ from the checkpoint of step {state['step']} "
                f"({', '.join(state['unequal'][:3])})"
            )
        else:
            words.append(f"{state['values']} values equal to the checkpoint of step {state['step']}")
    return "; ".join(words)


def conflicts_of(terms: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return pairs of terms whose gradients oppose each other, the most opposed first."""
    found = [
        {"group": group["group"], "terms": pair["terms"], "cosine": pair["cosine"]}
        for group in (terms or {}).get("groups", ())
        for pair in group["pairs"]
        if isinstance(pair["cosine"], float) and pair["cosine"] < OPPOSED
    ]
    return sorted(found, key=lambda row: row["cosine"])


def error_of(result: Result) -> Mapping[str, Any] | None:
    """Return the exception that ended the step; None if it ended normally."""
    trace = result["trace"]
    return None if trace is None else trace["error"]


def findings_of(result: Result) -> list[dict[str, Any]]:
    """Return what is wrong with the step, in the form of findings."""
    return list(_findings(result))


def _findings(result: Result) -> Iterator[dict[str, Any]]:
    step = result["step"]
    first = result["trace"]["first"] if result["trace"] is not None else None
    if first is not None:
        message = f"the first operation that produced a value that is not finite: {origin_sentence(first)}"
        yield _finding("NotFinite", "error", step, message, f"it reached {', '.join(first['reached'][:6])}")
    error = error_of(result)
    if error is not None:
        where = place_of(error["stack"])
        message = f"{error['type']}: {error['message']}" + (f" (at {where})" if where else "")
        yield _finding("Exception", "error", error["step"], message, "")
    equality = result["equality"]
    if not equality["equal"]:
        at = step if equality["ended"] is None else equality["ended"]["step"]
        reasons = f"likely: {'; '.join(equality['reasons'])}"
        yield _finding("NotEqual", "warning", at, equality_sentence(equality), reasons)
    if result["repeats"]["differing"]:
        message = f"the step did not repeat itself: {', '.join(result['repeats']['differing'][:4])} differ"
        remedy = "state of the loop that is not tracked changes from one time to the next: pass it to run.track(...)"
        yield _finding("NotRepeated", "warning", step, message, remedy)
    for pair in conflicts_of(result["terms"])[:5]:
        one, other = pair["terms"]
        message = (
            f"the gradients of {one} and {other} oppose each other in {pair['group']}: cosine {pair['cosine']:.2f}"
        )
        yield _finding(
            "TermsDisagree", "note", step, message, f"fieldwatch replay ... --without {one} shows the effect"
        )


def _finding(rule: str, severity: str, step: int, message: str, remedy: str) -> dict[str, Any]:
    return {"rule": rule, "severity": severity, "step": step, "message": message, "remedy": remedy, "subject": ""}


def verdict_of(result: Result) -> tuple[Level, str]:
    """Return the level of the verdict and its title."""
    step = result["step"]
    trace = result["trace"]
    first = trace["first"] if trace is not None else None
    if first is not None:
        where = place_of(first["stack"], whole=False)
        at = f" at {where}" if where else ""
        return "failed", f"step {step}: the first value that is not finite came from {operation_of(first)}{at}"
    error = error_of(result)
    if error is not None:
        return "failed", f"step {step}: {error['type']} at {place_of(error['stack'], whole=False) or 'an unknown line'}"
    if not result["equality"]["equal"]:
        return "findings", f"step {step}: finite, but not the numbers that the run recorded"
    return "healthy", f"step {step}: every loss and gradient is finite"


def start_sentence(result: Result) -> str:
    """Return what the replay began with."""
    if result["from_checkpoint"]:
        return f"from the checkpoint of step {result['start']}"
    return "from the beginning, without a checkpoint"


def summary_of(result: Result) -> dict[str, str]:
    """Return the lines for the terminal, by label."""
    found = {
        "replayed": f"{start_sentence(result)}, in {duration(result['seconds'])}",
        "equality": equality_sentence(result["equality"]),
    }
    if result["equality"]["reasons"]:
        found["likely"] = "; ".join(result["equality"]["reasons"])
    trace = result["trace"]
    first = trace["first"] if trace is not None else None
    found["not finite"] = "nothing: all losses and gradients are finite" if first is None else origin_sentence(first)
    if first is not None:
        found["reached"] = ", ".join(first["reached"][:4]) + (" ..." if len(first["reached"]) > 4 else "")
    error = error_of(result)
    if error is not None:
        found["exception"] = f"{error['type']}: {error['message']} (at {place_of(error['stack'])})"
    conflicts = conflicts_of(result["terms"])
    if conflicts:
        one, other = conflicts[0]["terms"]
        found["disagree"] = f"{one} and {other} in {conflicts[0]['group']}: cosine {conflicts[0]['cosine']:.2f}"
    if result["samples"] and "loss" in result["samples"][0]:
        worst = result["samples"][0]
        found["worst sample"] = f"{worst['sample']}: {_number(worst['loss'])}" + _share(worst["share"])
    if trace is not None and trace["memory"]["lines"]:
        line = trace["memory"]["lines"][0]
        peak = nbytes(trace["memory"]["peak"])
        found["memory"] = f"peak {peak}, most of it at {line['file']}:{line['line']} ({nbytes(line['at_peak'])})"
    for each in result["passes"]:
        found[each["name"]] = pass_sentence(each)
    return found


def pass_sentence(one: Mapping[str, Any]) -> str:
    """Return what happened in a pass: the losses, the gradient norm, whether the update was refused."""
    losses = [f"{_number(row['loss'])} (step {row['step']})" for row in one["losses"]]
    words = [f"loss {', '.join(losses)}"] if losses else []
    if one["gradient_norm"] is not None:
        words.append(f"gradient norm {_number(one['gradient_norm'])}")
    if one["refused"]:
        words.append("update refused")
    if one["error"] is not None:
        words.append(f"{one['error']['type']} in step {one['error']['step']}: {one['error']['message']}")
    return ", ".join(words)


def _share(share: object) -> str:
    return f" ({percent(share, 0)} of the loss)" if isinstance(share, float) else ""


def _number(value: object) -> str:
    return number(value) if isinstance(value, int | float) else str(value)
