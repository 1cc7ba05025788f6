import os
import subprocess
import sys
import time

import psutil
import pytest

from fieldwatch.monitor.processes import Processes, open_folders


@pytest.fixture
def start():
    started = []

    def start(program):
        started.append(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_cpu_shares_are_those_of_the_process(start):
    busy = start("print(flush=True)\nwhile True: pass")
    idle = start("import time; print(flush=True); time.sleep(60)")
    processes = Processes()
    assert [processes.facts(pid).cpu_percent for pid in (busy, idle)] == [None, None]
    spent = sum(psutil.Process(busy).cpu_times()[:2])
    # However little of a loaded machine it gets.
    while sum(psutil.Process(busy).cpu_times()[:2]) < spent + 0.1:
        time.sleep(0.02)
    shares = [processes.facts(pid).cpu_percent for pid in (busy, idle)]
    assert shares[0] > 10 * shares[1]


def test_facts_of_this_process():
    facts = Processes().facts(os.getpid())
    assert (facts.pid, facts.user) == (os.getpid(), psutil.Process().username())
    assert facts.resident_bytes > 2**20
    assert facts.command == " ".join(psutil.Process().cmdline())


@pytest.mark.parametrize("pid", [2**22 + 1, -1, 2**40])
def test_a_pid_that_is_not_here_is_none(pid):
    assert Processes().facts(pid) is None


def test_a_process_that_must_not_be_looked_into_keeps_what_is_open(monkeypatch):
    def refuse(process, *_):
        raise psutil.AccessDenied(process.pid)

    for name in ("cmdline", "open_files", "username"):
        monkeypatch.setattr(psutil.Process, name, refuse)
    facts = Processes().facts(os.getpid())
    assert (facts.command, facts.user) == (None, None)
    assert facts.name
    assert facts.resident_bytes
    assert open_folders(psutil.Process(), "journal.jsonl") == set()


def test_ended_processes_are_forgotten(start):
    pid = start("print(flush=True); input()")
    processes = Processes()
    processes.facts(pid)
    psutil.Process(pid).kill()
    os.waitpid(pid, 0)
    processes.forget_ended()
    assert processes._known == {}
    assert processes.facts(pid) is None
