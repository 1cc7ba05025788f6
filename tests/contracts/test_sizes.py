"""Functions and files stay small enough to be read in one look."""

import ast
import statistics

FUNCTION_MEDIAN, FUNCTION_P90, FUNCTION_MAX, FILE_MAX = 10, 40, 60, 400


def function_lengths(tree: ast.Module) -> dict[str, int]:
    """Lines per function, signature and docstring included."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {f"{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1 for node in functions}


def test_lengths_are_counted_from_def_to_last_line():
    assert function_lengths(ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n')) == {"1 f": 6}


def test_no_function_is_longer_than_the_limit(sources):
    lengths = [(source.place, name, n) for source in sources for name, n in function_lengths(source.tree).items()]
    assert [row for row in lengths if row[2] > FUNCTION_MAX] == []


def test_most_functions_are_short(sources):
    lengths = [n for source in sources for n in function_lengths(source.tree).values()]
    assert statistics.median(lengths) <= FUNCTION_MEDIAN
    assert statistics.quantiles(lengths, n=10)[-1] <= FUNCTION_P90


def test_no_file_is_longer_than_the_limit(sources):
    assert {s.place: n for s in sources if (n := len(s.text.splitlines())) > FILE_MAX} == {}
