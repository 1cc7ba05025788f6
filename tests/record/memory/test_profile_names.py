import pytest

from fieldwatch.record import TOOLKIT
from fieldwatch.record.memory import profile_tag

USUAL = "TensorProfiling/Tensor_DType/float32_MB"
OTHER = "Memory/Tensor_DType/float32_MB"


@pytest.mark.parametrize(
    ("recorded", "found"),
    [({USUAL}, USUAL), ({OTHER}, OTHER), ({USUAL, OTHER}, USUAL), (set(), USUAL), ({"Memory/peak_MB"}, USUAL)],
)
def test_a_tag_is_found_under_the_name_that_the_run_chose(recorded, found):
    assert profile_tag(USUAL, recorded) == found


def test_every_other_tag_is_itself():
    assert profile_tag("Loss/total", {OTHER}) == "Loss/total"


def test_every_tag_of_the_profile_is_declared_under_both_names():
    names = {metric.name for metric in TOOLKIT}
    usual = {name.partition("/")[2] for name in names if name.startswith("TensorProfiling/")}
    assert len(usual) == 10
    assert {f"Memory/{name}" for name in usual} <= names
    assert TOOLKIT.require("Memory/fragmentation_percent").unit == "%"
    assert "TensorProfiling" not in TOOLKIT.require("Memory/fragmentation_percent").meaning
