"""What the package never does: hide failures, mask values, leave stubs, wait for the device behind one's back."""

import ast
import re

import pytest

BROAD = {"Exception", "BaseException"}
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|To be written\.")

# Rooms on the path of every step, and the host reads there that are allowed: (file, function), why.
HOT_ROOMS = ("measure/", "guard/", "run/")
HOST_READS = {"item", "cpu"}
ALLOWED_READS = {
    ("run/recording.py", "histogram"): "an explicit call of the loop, not part of a step",
}


def caught_names(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return BROAD
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}


def raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def broad_handlers(tree: ast.Module) -> list[str]:
    """Functions with a handler that takes everything and does not raise it again."""
    found = [(f, h) for f in functions(tree) for h in ast.walk(f) if isinstance(h, ast.ExceptHandler)]
    return [f.name for f, h in found if caught_names(h) & BROAD and not raises_again(h)]


def masked_or_unfinished(tree: ast.Module) -> list[str]:
    names = [n.attr if isinstance(n, ast.Attribute) else getattr(n, "id", "") for n in ast.walk(tree)]
    return [name for name in names if name in {"nan_to_num", "nan_to_num_", "NotImplementedError"}]


def host_reads(tree: ast.Module) -> list[tuple[str, str]]:
    """Pairs of function and method, for methods of a tensor that wait for the device."""
    calls = [(f, c.func) for f in functions(tree) for c in ast.walk(f) if isinstance(c, ast.Call)]
    return [(f.name, c.attr) for f, c in calls if isinstance(c, ast.Attribute) and c.attr in HOST_READS]


@pytest.mark.parametrize("clause", ["except:", "except Exception:", "except (ValueError, BaseException) as e:"])
def test_a_broad_handler_is_seen(clause):
    assert broad_handlers(ast.parse(f"def f():\n  try:\n    g()\n  {clause}\n    pass")) == ["f"]


def test_a_handler_that_raises_again_is_fine():
    assert broad_handlers(ast.parse("def f():\n  try:\n    g()\n  except BaseException:\n    h()\n    raise")) == []


@pytest.mark.parametrize("line", ["x = torch.nan_to_num(x)", "x.nan_to_num_()", "raise NotImplementedError('later')"])
def test_a_masked_value_or_a_stub_is_seen(line):
    assert len(masked_or_unfinished(ast.parse(line))) == 1


def test_a_host_read_is_seen():
    assert host_reads(ast.parse("def f(loss):\n    return loss.detach().cpu()")) == [("f", "cpu")]


def test_no_failure_is_swallowed(sources):
    assert {s.place: found for s in sources if (found := broad_handlers(s.tree))} == {}


def test_nothing_is_masked_or_left_for_later(sources):
    assert {s.place: found for s in sources if (found := masked_or_unfinished(s.tree))} == {}
    marks = {s.place: [match[0] for match in UNFINISHED.finditer(s.text)] for s in sources}
    assert {place: found for place, found in marks.items() if found} == {}


def test_a_step_does_not_wait_for_the_device(sources):
    hot = [source for source in sources if source.place.startswith(HOT_ROOMS)]
    found = {(s.place, function): method for s in hot for function, method in host_reads(s.tree)}
    assert {place: method for place, method in found.items() if place not in ALLOWED_READS} == {}


def test_allowed_reads_are_still_there(sources):
    reads = {(s.place, function) for s in sources for function, _ in host_reads(s.tree)}
    assert set(ALLOWED_READS) - reads == set()
