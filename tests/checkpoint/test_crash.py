"""Kill -9 at random times and at every system call, every error at every call, and the order of the calls."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "provoked.py"


def run(folder, *accidents, prefix=()):
    command = [*prefix, sys.executable, str(SCRIPT), str(folder), *accidents]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def accidents(tmp_path_factory):
    """Results of the accidents that need no separate disk; in one process, because importing torch takes seconds."""
    kills = ("kill_loop", "kill_behind", "kill_runs", "kill_at_every_call")
    names = (*kills, "error_at_every_call", "file_size_limit", "recorded_order")
    return run(tmp_path_factory.mktemp("accidents"), *names)


def test_25_kills_at_random_times_never_cost_an_acknowledged_step(accidents):
    results = accidents["kill_loop"]
    assert len(results) == 25
    assert all(one["whole"] for one in results)
    assert all(one["step"] >= one["promised"] for one in results)
    assert results[-1]["step"] >= 25  # it did save in between


@pytest.mark.parametrize(("accident", "kills"), [("kill_behind", 15), ("kill_runs", 4)])
def test_kills_while_a_thread_writes_never_cost_an_acknowledged_step(accidents, accident, kills):
    results = accidents[accident]
    assert len(results) == kills
    assert all(one["whole"] for one in results)  # and never torn: all changed while it was written
    assert all(one["step"] >= one["promised"] > 0 for one in results)


def test_a_kill_at_every_single_call_of_a_save_leaves_a_whole_one(accidents):
    results = accidents["kill_at_every_call"]
    assert len(results) > 20
    assert all(one["whole"] and one["step"] >= one["promised"] for one in results)
    assert {one["step"] for one in results} == {1, 2}
    assert all(one["left"] == ["step_0000000003"] for one in results)


def test_every_error_at_every_call_is_survived_and_told(accidents):
    results = accidents["error_at_every_call"]
    told = [one for one in results if one["error"]]
    assert {one["code"] for one in told} == {"EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES"}
    assert {"open", "mkdir", "posix_fallocate", "write", "fsync", "rename"} <= {one["call"] for one in told}
    assert all(one["step"] >= one["promised"] for one in results)
    assert all("not saved" in one["error"] and "bytes needed" in one["error"] for one in told)
    assert all(one["left"] == ["step_0000000003"] for one in results)


def check_order(calls):
    """Check (call, path, new path) of a save that also deletes: write < fsync < rename < fsync(parent) < deletion."""

    def last(name, ending):
        return max(i for i, call in enumerate(calls) if call[0] == name and call[1].endswith(ending))

    renames = [i for i, call in enumerate(calls) if call[0] == "rename"]
    published, trashed = renames
    temporary, final = calls[published][1:3]
    assert Path(temporary).name.startswith(".tmp-step_0000000002")
    assert Path(final).name == "step_0000000002"
    assert Path(calls[trashed][2]).name.startswith(".trash-step_0000000001")
    for file in ("tensors.safetensors", "manifest.json", "manifest.sha256"):
        assert last("write", file) < last("fsync", file) < last("fsync", Path(temporary).name) < published
    assert last("posix_fallocate", "tensors.safetensors") < next(
        i for i, call in enumerate(calls) if call[0] == "write"
    )
    parent = last("fsync", Path(final).parent.name)
    assert published < parent < trashed
    assert all(i > trashed for i, call in enumerate(calls) if call[0] in ("unlink", "rmdir"))


def test_the_order_of_python_calls_is_the_durable_one(accidents):
    check_order(accidents["recorded_order"])


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_order_of_system_calls_is_the_durable_one(tmp_path):
    log = tmp_path / "log"
    calls = "write,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir,fallocate,mkdir,mkdirat"
    prefix = ("strace", "-f", "-y", "--seccomp-bpf", "-s", "0", "-o", str(log), "-e", f"trace={calls}")
    probe = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this container forbids ptrace")
    folder = tmp_path / "run"
    run(folder, "one_save", prefix=prefix)
    lines = [line for line in log.read_text().splitlines() if str(folder) in line]
    begin = next(i for i, line in enumerate(lines) if "/begin" in line)
    check_order([parsed(line) for line in lines[begin + 1 :]])


def parsed(line):
    """Turn ``123 fsync(5</a/b>) = 0`` into ("fsync", "/a/b"), and a rename into ("rename", old, new)."""
    name, arguments = re.fullmatch(r"\d+ +(\w+)\((.*?)(?:\) += .*| <unfinished \.\.\.>)", line).groups()
    name = {"fallocate": "posix_fallocate", "renameat2": "rename", "renameat": "rename", "unlinkat": "unlink"}.get(
        name, name
    )
    paths = re.findall(r'"([^"]*)"', arguments) if name == "rename" else re.findall(r"<([^>]*)>", arguments)
    return (name, *paths)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """Results of the accidents on a disk of 8 MB."""
    disk = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here; the file size limit is provoked instead")
    try:
        return run(disk, "full_disk", "read_only")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_keeps_the_old_one_and_says_what_is_wanted(small_disk):
    result = small_disk["full_disk"]
    assert result["errno"] == 28
    assert re.search(r"step 2 .*No space left.* 12,000,008 bytes needed, [\d,]+ free", result["error"])
    assert "[1] are untouched" in result["error"]
    assert "Retention.last" in result["error"]
    assert (result["step"], result["left"], result["again"]) == (1, ["step_0000000001"], "step_0000000003")
    assert result["written"] == 0  # found before anything was written


def test_a_read_only_disk_is_told_and_can_be_read(small_disk):
    result = small_disk["read_only"]
    assert result["errno"] == 30
    assert result["step"] == 1
    assert (result["fell_back_to"], result["damaged_at"]) == (1, "step_0000000002")
    assert re.search(r"renamed: .*Errno 30\b", result["reason"])


def test_a_file_size_limit_keeps_the_old_one(accidents):
    result = accidents["file_size_limit"]
    assert result["errno"] == 27
    assert "File too large" in result["error"]
    assert (result["step"], result["left"], result["again"]) == (1, ["step_0000000001"], "step_0000000003")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_checkpoint_that_may_not_be_read_is_no_damage(tmp_path):
    assert "cannot be read" in run(tmp_path, "unreadable")["unreadable"]["error"]
