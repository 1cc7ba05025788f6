import os
import subprocess
from pathlib import Path

import pytest

from fieldwatch.monitor.nsight import (
    Capture,
    device_line,
    find_nsys,
    report_file,
    start_line,
    stats_line,
    stop_line,
    training_line,
    whose,
)

REPORT, CODE = Path("/data/my runs/nsight/one"), Path("/tmp/x/code")  # noqa: S108  only named
COMMAND = ["fieldwatch", "train", "video", "--data", "a clip.mp4"]
TRACE = ["--trace=cuda,nvtx,osrt", "--cuda-memory-usage=true"]


def line(capture):
    whole = training_line("/bin/nsys", capture, REPORT, CODE, COMMAND)
    at = whole.index("/bin/sh")
    assert whole[at + 1] == "-c"
    assert whole[at + 3 :] == [str(CODE), *COMMAND]
    return whole[:at]


def test_everything_is_recorded_where_nothing_is_chosen():
    assert line(Capture()) == ["/bin/nsys", "profile", f"--output={REPORT}", *TRACE]
    assert Capture().variables() == {}


@pytest.mark.parametrize(
    ("capture", "variables"),
    [
        (Capture(steps=(1000, 1020)), {"FIELDWATCH_PROFILE_STEPS": "1000:1020"}),
        (Capture(steps=(0, 0)), {"FIELDWATCH_PROFILE_STEPS": "0:0"}),
        (Capture(on_finding=True), {"FIELDWATCH_PROFILE_ON_FINDING": "1"}),
    ],
)
def test_a_range_is_switched_by_the_command_and_does_not_end_it(capture, variables):
    limits = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none"]
    assert line(capture) == ["/bin/nsys", "profile", f"--output={REPORT}", *TRACE, *limits]
    assert capture.variables() == variables


def test_on_request_the_report_belongs_to_the_request():
    capture = Capture(session="fieldwatch-7")
    assert line(capture) == ["/bin/nsys", "launch", "--session-new=fieldwatch-7", *TRACE]
    assert capture.variables() == {"FIELDWATCH_NSYS_SESSION": "fieldwatch-7"}
    assert start_line("nsys", "s", REPORT) == ["nsys", "start", "--session=s", f"--output={REPORT}"]
    assert stop_line("nsys", "s") == ["nsys", "stop", "--session=s"]


def test_the_device_is_recorded_without_any_process():
    told = device_line("nsys", 2.5, REPORT)
    nothing = {"--trace=none", "--sample=none", "--cpuctxsw=none"}
    assert told[:3] == ["nsys", "profile", f"--output={REPORT}"]
    assert nothing < set(told)
    assert told[-3:] == ["--gpu-metrics-devices=all", "sleep", "2.5"]


def test_statistics_are_asked_for_as_csv():
    assert stats_line("nsys", report_file(REPORT)) == [
        "nsys",
        "stats",
        "--report=cuda_gpu_kern_sum,cuda_gpu_mem_size_sum,nvtx_sum",
        "--format=csv",
        "--force-export=true",
        "/data/my runs/nsight/one.nsys-rep",
    ]


def test_a_report_keeps_the_dots_of_its_name():
    assert report_file(Path("a/v1.5")) == Path("a/v1.5.nsys-rep")


@pytest.mark.parametrize("steps", [(-1, 5), (6, 5)])
def test_steps_that_are_no_range_are_refused(steps):
    with pytest.raises(ValueError, match="expected FIRST LAST"):
        Capture(steps=steps)


@pytest.mark.parametrize("ways", [{"steps": (0, 1), "on_finding": True}, {"on_finding": True, "session": "s"}])
def test_two_ways_at_once_are_refused(ways):
    with pytest.raises(ValueError, match="choose one"):
        Capture(**ways)


@pytest.mark.parametrize("code", [0, 3, 130])
def test_the_exit_code_of_the_command_is_kept_whatever_nsys_returns(tmp_path, code):
    kept = tmp_path / "a code"
    whole = training_line("nsys", Capture(), REPORT, kept, ["/bin/sh", "-c", f'echo "$0 $1"; exit {code}', "a b", "$c"])
    done = subprocess.run(whole[whole.index("/bin/sh") :], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode, kept.read_text()) == ("a b $c\n", code, f"{code}\n")


def test_a_session_is_looked_for_where_the_command_has_its_temporary_files():
    assert whose({"TMPDIR": "/scratch", "PATH": "/elsewhere"}) == {**os.environ, "TMPDIR": "/scratch"}
    assert whose({}) == dict(os.environ)


def test_nsys_is_found_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr("fieldwatch.monitor.nsight.lines.USUAL_PLACES", (f"{tmp_path}/*/bin/nsys",))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_nsys() is None
    for version in ("2024.5", "2025.3"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "nsys").touch()
    assert find_nsys() == f"{tmp_path}/2025.3/bin/nsys"
    (tmp_path / "nsys").touch(0o755)
    assert find_nsys() == f"{tmp_path}/nsys"
