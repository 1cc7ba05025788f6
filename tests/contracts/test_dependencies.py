"""The toolkit alone installs what it imports: what only a pipeline needs is an extra."""

import ast
import subprocess
import sys

import pytest

# Modules of the toolkit that are only imported where an extra is there: the extra, and what for.
NEEDS_AN_EXTRA = {
    "adapters/accelerate_tracker.py": "accelerate: an adapter for it",
    "adapters/lightning_callback.py": "lightning: an adapter for it",
    "adapters/transformers_callback.py": "transformers: an adapter for it",
    "report/foreign/files.py": "tensorboard: reads the event files of other programs",
    "report/foreign/pictures.py": "tensorboard: reads the pictures in event files of other programs",
    "report/tab/loader.py": "tensorboard: a plug-in, which TensorBoard loads",
    "report/tab/plugin.py": "tensorboard: a plug-in, which TensorBoard loads",
}
MODULES = {"pillow": "PIL", "nvidia-ml-py": "pynvml", "google-crc32c": "google_crc32c"}


def third_party_at_import(tree):
    """Top-level modules that importing a file imports, besides the standard library and our own."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"fieldwatch"}


def test_the_toolkit_imports_only_what_its_installation_brings(root, requirements):
    installed = {MODULES.get(name, name) for name in requirements[""]}
    package = root / "src/fieldwatch"
    wrong = {}
    for path in package.rglob("*.py"):
        place = str(path.relative_to(package))
        if place.startswith("recon/") or place in NEEDS_AN_EXTRA:
            continue
        if extra := third_party_at_import(ast.parse(path.read_text())) - installed:
            wrong[place] = extra
    assert wrong == {}


def test_no_pipeline_library_is_installed_with_the_toolkit_alone(requirements):
    of_pipelines = set().union(*(requirements[extra] for extra in ("splats", "normals", "mesh", "video")))
    assert requirements[""] & of_pipelines == set()


@pytest.mark.parametrize(
    ("program", "most"),
    [("import fieldwatch; fieldwatch.Run", 60), ("import fieldwatch; fieldwatch.read_history", 45)],
)
def test_few_modules_are_loaded(program, most):
    line = f"{program}; import sys; print(sum(name.split('.')[0] == 'fieldwatch' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert int(done.stdout) < most


def test_run_loads_no_library_of_a_feature_that_nobody_asked_for():
    heavy = {"PIL", "rich", "tensorboard", "google", "tyro", "scipy", "av"}
    line = f"import fieldwatch, sys; fieldwatch.Run; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
