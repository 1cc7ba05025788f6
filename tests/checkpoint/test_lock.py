"""One writer: a second process is refused by name, a dead one's lock is free at once."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fieldwatch.checkpoint import FolderInUseError, OneWriter

SCRIPT = Path(__file__).parent / "provoked.py"


def test_a_second_process_is_refused_and_takes_over_after_kill_9(tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path), "hold"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        owner = json.loads(holder.stdout.readline())
        began = time.monotonic()
        with pytest.raises(FolderInUseError) as caught, OneWriter(tmp_path / "hold"):
            pass
        assert time.monotonic() - began < 0.5
        message = str(caught.value)
        assert f"process {owner['pid']} on host {socket.gethostname()} since 20" in message
        assert f"stop it (kill {owner['pid']} on {socket.gethostname()}), or give this run another folder" in message

        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(owner["worker"], 0)  # its forked worker lives on
        began = time.monotonic()
        with OneWriter(tmp_path / "hold"):
            assert time.monotonic() - began < 0.5
            assert json.loads((tmp_path / "hold" / ".lock").read_bytes())["pid"] == os.getpid()
        os.kill(owner["worker"], signal.SIGKILL)


def test_the_same_process_is_refused_too_and_may_come_back(tmp_path):
    with OneWriter(tmp_path):
        with pytest.raises(FolderInUseError, match=rf"already held by this process \(pid {os.getpid()}\): use one Run"):
            OneWriter(tmp_path).__enter__()
        with pytest.raises(FolderInUseError), OneWriter(tmp_path / "." / ".." / tmp_path.name):
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
    with OneWriter(tmp_path):
        pass
    assert (tmp_path / ".lock").read_bytes() == b""


def test_a_lock_file_that_says_nothing_still_refuses(tmp_path):
    script = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); f.write('[]'); f.flush();"
    script += "print(flush=True); input()"
    command = [sys.executable, "-c", script, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with (
            pytest.raises(FolderInUseError, match="process unknown on host unknown since unknown"),
            OneWriter(tmp_path),
        ):
            pass
        holder.communicate(b"\n")
