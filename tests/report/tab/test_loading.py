"""Modules that TensorBoard imports when it starts."""

import subprocess
import sys
from importlib import metadata


def loaded(program):
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.stderr == ""
    return found.stdout.split()


def test_the_entry_point_names_the_loader():
    (found,) = [point for point in metadata.entry_points(group="tensorboard_plugins") if point.name == "fieldwatch"]
    assert found.value == "fieldwatch.report.tab:TabLoader"


def test_the_entry_point_imports_next_to_nothing():
    heavy = "('torch', 'numpy', 'werkzeug', 'tensorboard.backend', 'fieldwatch.record')"
    assert loaded(f"import sys, fieldwatch.report.tab; print(*[m for m in {heavy} if m in sys.modules])") == []


def test_the_tab_needs_no_torch():
    heavy = "('torch', 'jaxtyping', 'tensorflow', 'tyro')"
    assert loaded(f"import sys, fieldwatch.report.tab.plugin; print(*[m for m in {heavy} if m in sys.modules])") == []


def test_the_record_needs_no_tensorboard():
    heavy = "('torch', 'tensorboard', 'werkzeug')"
    assert loaded(f"import sys, fieldwatch.record; print(*[m for m in {heavy} if m in sys.modules])") == []
