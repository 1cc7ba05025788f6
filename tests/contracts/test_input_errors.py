"""Every error class about what the user gave has the one base that the command line turns into exit code 2."""

import ast

import pytest

from fieldwatch.base import InputError

# Errors that are not about input: (file, class), why.
OTHERS = {
    ("base/space.py", "DiskFullError"): "a full disk passes; the supervisor tries again",
    ("checkpoint/incident.py", "CheckpointError"): "writing can fail, too; what is stored is a StoredStateError",
    ("checkpoint/snapshot.py", "ShortOfMemoryError"): "the machine's memory; the save waits instead",
    ("guard/verdict.py", "Diverged"): "the training, not its input",
    ("recon/commands/capture/process.py", "CaptureFailedError"): "COLMAP has crashed, or was killed",
    ("recon/pipelines/normals/rank_exchange.py", "ShortElsewhereError"): "the memory of another process",
    ("recon/pipelines/splats/gaussians.py", "NotFiniteError"): "the training has made them so",
    ("record/catalogue.py", "DuplicateMetric"): "a mistake in the code that declares metrics",
    ("record/catalogue.py", "UndeclaredMetric"): "a mistake in the code that records",
    ("record/writer.py", "WriterFailed"): "a reader of the record, or the disk",
    ("registry/installed.py", "PipelineError"): "a bug of an installed package",
    ("recon/render/gpu/compilation.py", "KernelsUnavailable"): "no compiler or driver; torch's operations take over",
    ("recon/render/native/build.py", "CompilerRefused"): "a compiler without OpenMP; one thread takes over",
    ("recon/render/native/build.py", "NativeUnavailable"): "no compiler; plain torch takes over",
    ("replay/precision.py", "NativeCodeError"): "the code of the step; the result of an intervention",
    ("run/rank_group.py", "RankLost"): "another process",
    ("run/shared_step.py", "RanksDriftedError"): "other processes",
}


def error_classes(tree: ast.Module) -> dict[str, list[str]]:
    """Classes whose bases are named as errors are, with their bases."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if any(base.endswith(("Error", "Exception")) or base in found for base in bases):
                found[node.name] = bases
    return found


def not_about_input(classes: dict[tuple[str, str], list[str]]) -> set[tuple[str, str]]:
    """Error classes that do not come from InputError, however far up."""
    about = {InputError.__name__}
    while new := {name for (_, name), bases in classes.items() if name not in about and about & set(bases)}:
        about |= new
    return {place for place in classes if place[1] not in about}


@pytest.mark.parametrize("base", ["ValueError", "LookupError", "builtins.OSError"])
def test_an_error_class_of_its_own_is_seen(base):
    classes = error_classes(ast.parse(f"class Odd({base}):\n  pass"))
    assert not_about_input({("a.py", name): bases for name, bases in classes.items()}) == {("a.py", "Odd")}


def test_an_error_class_that_comes_from_the_base_is_fine():
    classes = error_classes(ast.parse("class Odd(InputError):\n  pass\nclass Odder(Odd, OSError):\n  pass"))
    assert not_about_input({("a.py", name): bases for name, bases in classes.items()}) == set()


def test_every_error_class_is_about_input_or_says_why_not(sources):
    classes = {(source.place, name): bases for source in sources for name, bases in error_classes(source.tree).items()}
    assert not_about_input(classes) == {place for place in OTHERS if place in classes}
    assert set(OTHERS) - set(classes) == set()
