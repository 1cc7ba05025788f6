"""The folder lock: a second process is refused, and the lock of a dead process is free immediately."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fieldwatch.checkpoint import CheckpointError, FolderInUseError, FolderLock

SCRIPT = Path(__file__).parent / "provoked.py"


@pytest.mark.machine
def test_a_second_process_is_refused_and_takes_over_after_kill_9(tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path), "hold"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        owner = json.loads(holder.stdout.readline())
        began = time.monotonic()
        with pytest.raises(FolderInUseError) as caught, FolderLock(tmp_path / "hold"):
            pass
        assert time.monotonic() - began < 0.5
        message = str(caught.value)
        assert f"process {owner['pid']} on host {socket.gethostname()} since 20" in message
        assert f"(kill {owner['pid']} on {socket.gethostname()})" in message

        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(owner["worker"], 0)  # its forked worker lives on
        began = time.monotonic()
        with FolderLock(tmp_path / "hold"):
            assert time.monotonic() - began < 0.5
            assert json.loads((tmp_path / "hold" / ".lock").read_bytes())["pid"] == os.getpid()
        os.kill(owner["worker"], signal.SIGKILL)


def test_the_same_process_is_refused_too_and_may_come_back(tmp_path):
    with FolderLock(tmp_path):
        with pytest.raises(FolderInUseError, match=rf"\(pid {os.getpid()}\)"):
            FolderLock(tmp_path).__enter__()
        with pytest.raises(FolderInUseError), FolderLock(tmp_path / "." / ".." / tmp_path.name):
            pass
        refused = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import fcntl; fcntl.lockf(open({str(tmp_path / '.lock')!r}, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)",
            ],
            capture_output=True,
            check=False,
        )
        assert b"BlockingIOError" in refused.stderr  # the refusals above did not drop the lock
    with FolderLock(tmp_path):
        pass
    assert (tmp_path / ".lock").read_bytes() == b""


def test_a_lock_file_that_says_nothing_still_refuses(tmp_path):
    script = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); f.write('[]'); f.flush();"
    script += "print(flush=True); input()"
    command = [sys.executable, "-c", script, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with (
            pytest.raises(FolderInUseError, match=r"process unknown.*\(kill unknown"),
            FolderLock(tmp_path),
        ):
            pass
        holder.communicate(b"\n")


def second_writer(folder):
    """Return the error of a second process that locks the folder; empty if it succeeds."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            FolderLock(folder).__enter__()
        except FolderInUseError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        return said.read()


def copied(folder):
    shutil.copytree(folder, folder.with_name("backup"))


def opened_and_closed(folder):
    (folder / ".lock").open("rb").close()


def deleted(folder):
    (folder / ".lock").unlink()


def replaced(folder):
    (folder / ".lock").rename(folder / "moved")
    (folder / ".lock").write_bytes(b"")


def overwritten(folder):
    (folder / ".lock").write_bytes(b"[" * 4096)


@pytest.mark.parametrize("happens", [copied, opened_and_closed, deleted, replaced, overwritten])
def test_nothing_that_happens_to_the_lock_file_lets_a_second_writer_in(tmp_path, happens):
    folder = tmp_path / "run"
    with FolderLock(folder):
        happens(folder)
        assert "written by process" in second_writer(folder)
    assert second_writer(folder) == ""


def test_a_forked_child_holds_nothing_and_takes_nothing_away(tmp_path):
    reader, writer = os.pipe()
    with FolderLock(tmp_path):
        child = os.fork()
        if not child:
            os.read(reader, 1)
            os._exit(0)
        assert "written by process" in second_writer(tmp_path)
    assert second_writer(tmp_path) == ""  # though the child lives on
    os.write(writer, b"x")
    os.waitpid(child, 0)


def test_a_link_in_place_of_the_lock_file_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("not ours")
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointError, match=r"run/\.lock"), FolderLock(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "not ours"
    (tmp_path / "run" / ".lock").unlink()
    with FolderLock(tmp_path / "run"):  # the refusal gave the folder back
        pass
