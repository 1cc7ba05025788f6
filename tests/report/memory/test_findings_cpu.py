from fieldwatch.record.memory import MemoryLog
from fieldwatch.report.memory import analyze, read_trace


def lost_in_pieces(folder, device):
    """Return the findings about a run in which half of the reserved memory cannot be returned."""
    with MemoryLog(folder) as log:
        for step in range(0, 1000, 50):
            log.append(
                {
                    "step": step,
                    "time": "2026-11-21T07:00:00",
                    "moment": "update",
                    "device": device,
                    "allocated": 500 * 2**20,
                    "reserved": 1000 * 2**20,
                    "owners": {"parameters": {"model": 500 * 2**20}},
                    "fragmentation": {"not_returnable": 500 * 2**20},
                }
            )
    return [finding.rule for finding in analyze(read_trace(folder)).findings]


def test_pieces_are_lost_on_a_device_and_not_on_a_cpu(tmp_path):
    assert "memory in pieces" in lost_in_pieces(tmp_path / "cuda", "cuda:0")
    assert "memory in pieces" not in lost_in_pieces(tmp_path / "cpu", "cpu")
