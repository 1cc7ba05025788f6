import sys

import pytest

from fieldwatch.base import MissingPackageError, import_extra, missing_package


@pytest.fixture
def without(monkeypatch):
    """Make a module look as if it were not installed."""

    def hide(name):
        monkeypatch.delitem(sys.modules, name, raising=False)

        class Hidden:
            def find_spec(self, module, *_):
                if module == name:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.setattr(sys, "meta_path", [Hidden(), *sys.meta_path])

    return hide


def test_an_installed_library_is_imported():
    assert import_extra("json", extra="video", needed_for="a test") is sys.modules["json"]


def test_a_missing_library_is_an_error_with_the_command_that_installs_it(without):
    without("constriction")
    with pytest.raises(MissingPackageError, match=r"the bitstream.*constriction.*pip install 'fieldwatch\[video\]'"):
        import_extra("constriction", extra="video", needed_for="the bitstream")


def test_what_an_installed_library_fails_to_import_is_not_cured_by_the_extra(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has"):
        import_extra("broken_library", extra="video", needed_for="a test")


@pytest.mark.parametrize(
    ("module", "preferred", "extra"),
    [
        ("scipy", ["train", "splats"], "splats"),
        ("scipy.spatial", ["train", "normals"], "normals"),
        ("skimage", ["mesh", "extract"], "mesh"),
        ("xatlas", ["eval"], "mesh"),
        ("constriction", ["train", "video"], "video"),
        ("tensorboard", ["compare"], "tensorboard"),
        ("google.protobuf", ["compare"], "tensorboard"),
        ("pyarrow", ["export"], "parquet"),
        ("mlflow", ["train", "video"], "mlflow"),
    ],
)
def test_the_extra_that_fits_the_command_is_named(module, preferred, extra):
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    found = missing_package(error, needed_for="fieldwatch", preferred=preferred)
    assert f"fieldwatch[{extra}]" in str(found)
    assert "pip install" in str(found)


def test_an_import_that_no_extra_cures_is_a_bug():
    error = ModuleNotFoundError("No module named 'fieldwatch.nothing'", name="fieldwatch.nothing")
    assert missing_package(error, needed_for="fieldwatch", preferred=[]) is None
