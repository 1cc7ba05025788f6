"""Code by reference: what it imports may be an extra that is not installed."""

import sys

import pytest

from fieldwatch.base import MissingPackageError
from fieldwatch.registry.pipeline import resolve


def test_a_reference_is_imported():
    assert resolve("json:dumps") is sys.modules["json"].dumps


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Make a module ``video_tools`` with this text."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        (tmp_path / "video_tools.py").write_text(text)
        monkeypatch.delitem(sys.modules, "video_tools", raising=False)

    return write


def test_a_package_that_an_extra_installs_is_an_error_of_input(module):
    module("raise ModuleNotFoundError('No module named xatlas', name='xatlas')")
    with pytest.raises(MissingPackageError, match=r"xatlas.*pip install 'fieldwatch\[mesh\]'"):
        resolve("video_tools:name")


def test_a_package_that_no_extra_installs_is_a_bug(module):
    module("import a_module_that_nobody_has")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has") as error:
        resolve("video_tools:name")
    assert not isinstance(error.value, ValueError)
