"""Public names of the pipelines are imported lazily."""

import ast
import importlib
from pathlib import Path

import pytest

PACKAGES = ["splats", "normals", "video"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_the_object_of_its_module(name):
    package = importlib.import_module(f"fieldwatch.recon.pipelines.{name}")
    tree = ast.parse(Path(package.__file__).read_text())
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in typed.body for alias in node.names}
    assert sorted(package.__all__) == sorted(homes)
    for public, home in homes.items():
        assert getattr(package, public) is getattr(importlib.import_module(home), public)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_module_hides_a_public_name(name):
    """Importing a module sets it as an attribute of its package, which would hide a lazy name."""
    package = importlib.import_module(f"fieldwatch.recon.pipelines.{name}")
    modules = {path.stem for path in Path(package.__file__).parent.iterdir()}
    assert modules & set(package.__all__) == set()


def test_an_unknown_name_raises_with_the_public_names():
    package = importlib.import_module("fieldwatch.recon.pipelines.video")
    with pytest.raises(AttributeError, match=r"'fieldwatch.recon.pipelines.video'.*'nothing'.*VIDEO_RULES"):
        _ = package.nothing
