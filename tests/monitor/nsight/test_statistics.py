import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.monitor.nsight import parse_statistics

TOLD = runpy.run_path(str(Path(__file__).with_name("canned_statistics.py")))["TOLD"]


def test_every_table_is_read_with_its_columns():
    kernels, copies, ranges, nothing = parse_statistics(TOLD)
    assert (kernels.report, kernels.title) == ("cuda_gpu_kern_sum", "CUDA GPU Kernel Summary")
    assert [row["Name"] for row in kernels.rows] == [
        "void splat<float, (int)3>(const float *, int)",
        "adam [clone]",
    ]
    assert kernels.rows[0]["Time (%)"] == "60.0"
    assert (copies.report, copies.rows[0]["Total (MB)"]) == ("cuda_gpu_mem_size_sum", "4000.5")
    assert copies.title == "CUDA GPU MemOps Summary (by Size)"
    assert [row["Range"] for row in ranges.rows] == [":render", ":backward"]
    assert (nothing.report, nothing.rows) == ("osrt_sum", ())


@pytest.mark.parametrize("text", ["", "SKIPPED: x.sqlite does not contain CUDA kernel data.\n", "a,b\n1,2\n"])
def test_no_table_is_none(text):
    assert parse_statistics(text) == ()


@given(text=st.text(alphabet=' *():,"a1\n', max_size=80))
def test_anything_can_be_read(text):
    for table in parse_statistics(f" ** T (t):\n{text}"):
        assert all(isinstance(value, str) for row in table.rows for value in row.values())
