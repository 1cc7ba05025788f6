"""What the package never does: hide failures, mask values, leave stubs, wait for the device behind one's back."""

import ast
import re
from collections.abc import Iterator, Mapping

import pytest

BORDER = re.compile(r"#.*(thread border|process border|code of strangers|user code)")
BROAD = {"Exception", "BaseException"}
WIDE = 4
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|To be written\.")

# Where code of ours ends and a thread, the process or code of strangers begins: (file, function), why all is caught.
BROAD_BORDERS = {
    ("checkpoint/items.py", "_load"): "code of strangers: an object's load_state_dict may raise anything; chained",
    ("checkpoint/mirror.py", "_copy_and_note"): "thread border: a failed copy is an event of the run",
    ("checkpoint/worker.py", "_do"): "thread border: raised on the training's thread",
    ("cli/entry.py", "_run"): "process border: a traceback and exit code 3",
    ("cli/training.py", "report_failure"): "process border: a crash folder, a traceback and exit code 3",
    ("health/examiner.py", "_evaluate"): "user code: a rule that raises is a finding",
    (
        "measure/out_of_memory.py",
        "call",
    ): "code of strangers, called by torch: printed, and torch raises its own error",
    ("monitor/notebook/live_view.py", "_work"): "thread border: printed; a view must not end the training",
    (
        "recon/commands/view/training_window.py",
        "_show",
    ): "code of strangers (viser): printed; it must not end the training",
    ("registry/installed.py", "_load"): "code of strangers: a package that cannot be imported; chained",
    ("record/writer.py", "_work"): "thread border: raised in the training thread",
    ("run/loop_checks/second_forward.py", "ask_again"): "user code: a module that insists on its batch is not asked",
    ("run/loop_source.py", "_facts"): "user code: the length of a data set may raise anything; the loader is left out",
    ("replay/replay.py", "train"): "user code: an exception of the step is a result of the replay",
}

# Classes that end an exception in `__exit__`: (file, class), why that is what their user asks for.
SWALLOWING_EXITS = {
    (
        "run/evaluation.py",
        "EvaluationBlock",
    ): "`with run.evaluation(...)`: its failure is an event; bugs go on their way",
}

# Handlers of four or more types: (file, function), why the types have no common base.
WIDE_HANDLERS = {
    ("base/arrays.py", "_header"): "what ast.literal_eval documents for damaged text; translated",
    ("base/arrays.py", "_members"): "zipfile has no common base for what a damaged archive makes it raise; translated",
    (
        "record/source_code/snapshot.py",
        "read_source_code",
    ): "zipfile has no common base for what a damaged archive makes it raise; a source that is not known is None",
    (
        "base/image_errors.py",
        "decoding",
    ): "Pillow has no common base for what damaged pictures raise; translated",
    ("recon/data/gaussians/folder.py", "read_splat_cameras"): "JSON of strangers, read field by field; translated",
    ("recon/data/gaussians/settings.py", "parse_settings"): "what ast.parse and literal_eval document; translated",
    ("recon/data/gaussians/sog.py", "_meta"): "JSON of strangers, read field by field; translated",
    ("recon/data/normal_maps/diligent_mv.py", "_mat"): "scipy has no common base for damaged MATLAB files; translated",
    ("recon/losses/perceptual.py", "_state"): "torch.load has no common base for damaged files; translated",
    ("recon/mesh/glb_reader.py", "read_glb"): "JSON of strangers, read field by field; translated",
    ("recon/pipelines/video/teacher.py", "_load_clip"): "transformers has no common base for damaged files; translated",
    (
        "recon/pipelines/video/teacher.py",
        "_load_tokenizer",
    ): "transformers has no common base for damaged files; translated",
    ("report/account/event_pictures.py", "_picture_around"): "bytes of TensorBoard's files; left out of the page",
    ("report/account/event_pictures.py", "_pictures_backwards"): "bytes of TensorBoard's files; left out of the page",
    ("report/snapshot/pickled.py", "read_plain_pickle"): "what pickle documents for damaged data; translated",
}

# Rooms on the path of every step, and the host reads there that are allowed: (file, function), why.
HOT_ROOMS = ("measure/", "guard/", "run/")
HOST_READS = {"item", "cpu", "tolist"}
ALLOWED_READS = {
    ("run/run_record.py", "histogram"): "an explicit call of the loop, not part of a step",
    ("guard/verdict.py", "refused"): "of a scalar on a CPU only: there is nothing to wait for",
    ("measure/terms.py", "_sum_by_reading"): "of scalars on a CPU only, which the record reads at the end of the step",
    ("measure/ring.py", "write"): "of scalars on a CPU only, in HostRows; the ring of a GPU is not read",
    ("guard/spikes.py", "_read_state"): "of arrays of the record, in the writer thread",
    ("guard/spikes.py", "_split"): "of arrays of the record, in the writer thread",
    ("guard/spikes.py", "state"): "of arrays of the record, for a checkpoint",
    ("run/crash.py", "_write_rows"): "of arrays of the record, after a crash",
}


def bare_name(node: ast.expr) -> str:
    """The last part of a dotted name: `av.error.FFmpegError` is `FFmpegError`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def named_tuples(tree: ast.Module) -> dict[str, ast.Tuple]:
    """Tuples that the module gives a name, as `_DAMAGED = (KeyError, ValueError)`."""
    found: dict[str, ast.Tuple] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Tuple):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {bare_name(target): node.value for target in targets}
    return found


def caught_names(kind: ast.expr | None, tuples: Mapping[str, ast.Tuple]) -> list[str]:
    """The exception types that a handler names, also by a tuple of the module."""
    if kind is None:
        return ["BaseException"]
    if isinstance(kind, ast.Tuple):
        return [name for part in kind.elts for name in caught_names(part, tuples)]
    name = bare_name(kind)
    return caught_names(tuples[name], {}) if name in tuples else [name]


def raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def placed(tree: ast.AST, function: str = "<module>") -> Iterator[tuple[str, ast.AST]]:
    """Every node with the function that it stands in, the innermost one."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield inner, node
        yield from placed(node, inner)


def handlers(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Function and caught types of every handler that does not raise again at its end, and of every `suppress(...)`."""
    tuples = named_tuples(tree)
    for function, node in placed(tree):
        if isinstance(node, ast.ExceptHandler) and not raises_again(node):
            yield function, caught_names(node.type, tuples)
        elif isinstance(node, ast.Call) and bare_name(node.func) == "suppress":
            yield function, [name for kind in node.args for name in caught_names(kind, tuples)]


def broad_handlers(tree: ast.Module) -> list[str]:
    """Functions with a handler that takes everything and does not raise it again."""
    return [function for function, caught in handlers(tree) if BROAD & set(caught)]


def wide_handlers(tree: ast.Module) -> list[str]:
    """Functions with a handler that names so many types that it is nearly a broad one."""
    return [function for function, caught in handlers(tree) if len(caught) >= WIDE]


def says_nothing(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value in (None, False))


def swallowing_exits(tree: ast.Module) -> list[str]:
    """Classes whose `__exit__` may return something true: the exception would end there."""
    found: list[str] = []
    for node in ast.walk(tree):
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name in {"__exit__", "__aexit__"}:
                returned = [one.value for one in ast.walk(part) if isinstance(one, ast.Return)]
                if not says_nothing(part.returns) or not all(map(says_nothing, returned)):
                    found.append(node.name)
    return found


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


@pytest.mark.parametrize("clause", ["suppress(Exception)", "contextlib.suppress(OSError, BaseException)"])
def test_a_broad_suppress_is_seen(clause):
    assert broad_handlers(ast.parse(f"def f():\n  with {clause}:\n    g()")) == ["f"]


def test_a_broad_handler_by_a_name_or_outside_of_a_function_is_seen():
    assert broad_handlers(ast.parse("ALL = (Exception,)\ntry:\n  g()\nexcept ALL:\n  pass")) == ["<module>"]


@pytest.mark.parametrize("kind", ["(A, B, C, D)", "SOME", "(A, SOME)", "suppress(A, B, C, D)"])
def test_a_wide_handler_is_seen(kind):
    code = f"with {kind}:\n    g()" if "suppress" in kind else f"try:\n    g()\n  except {kind}:\n    pass"
    assert wide_handlers(ast.parse(f"SOME = (A, a.B, C, D)\ndef f():\n  {code}")) == ["f"]


def test_a_handler_of_three_types_is_fine():
    assert wide_handlers(ast.parse("def f():\n  try:\n    g()\n  except (A, B, C):\n    pass")) == []


@pytest.mark.parametrize("body", ["-> bool:\n    return False", ":\n    return True", ":\n    return bool(error)"])
def test_a_swallowing_exit_is_seen(body):
    assert swallowing_exits(ast.parse(f"class C:\n  def __exit__(self, kind, error, at) {body}")) == ["C"]


@pytest.mark.parametrize("body", ["-> None:\n    return", ":\n    return False", ":\n    self.close()"])
def test_an_exit_that_lets_exceptions_pass_is_fine(body):
    assert swallowing_exits(ast.parse(f"class C:\n  def __exit__(self, kind, error, at) {body}")) == []


def test_a_handler_that_raises_again_is_fine():
    assert broad_handlers(ast.parse("def f():\n  try:\n    g()\n  except BaseException:\n    h()\n    raise")) == []


@pytest.mark.parametrize("line", ["x = torch.nan_to_num(x)", "x.nan_to_num_()", "raise NotImplementedError('later')"])
def test_a_masked_value_or_a_stub_is_seen(line):
    assert len(masked_or_unfinished(ast.parse(line))) == 1


def test_a_host_read_is_seen():
    assert host_reads(ast.parse("def f(loss):\n    return loss.detach().cpu()")) == [("f", "cpu")]


@pytest.mark.parametrize(
    ("find", "allowed"),
    [(broad_handlers, BROAD_BORDERS), (wide_handlers, WIDE_HANDLERS), (swallowing_exits, SWALLOWING_EXITS)],
)
def test_exceptions_end_only_where_that_has_a_reason(sources, find, allowed):
    found = {(source.place, name) for source in sources for name in find(source.tree)}
    assert found - set(allowed) == set()
    assert set(allowed) - found == set(), "these stand in the list and not in the code"


def test_every_broad_handler_says_why_where_it_stands(sources):
    lines = [
        source.text.splitlines()[node.lineno - 1]
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler) and BROAD & set(caught_names(node.type, {})) and not raises_again(node)
    ]
    assert len(lines) == len(BROAD_BORDERS)
    assert [line for line in lines if not BORDER.search(line)] == []


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
