import pytest

from fieldwatch.base import missing_package


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
    found = missing_package(error, preferred=preferred)
    assert f"fieldwatch[{extra}]" in str(found)
    assert "pip install" in str(found)


def test_an_import_that_no_extra_cures_is_a_bug():
    error = ModuleNotFoundError("No module named 'fieldwatch.nothing'", name="fieldwatch.nothing")
    assert missing_package(error, preferred=[]) is None
