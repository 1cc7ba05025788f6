"""Signals set a flag; two ctrl-C stop at once; workers and the handlers before are left in peace."""

import os
import signal
import threading
import time

import pytest

from fieldwatch.checkpoint import StopRequest


def send(number, times=1):
    for _ in range(times):
        os.kill(os.getpid(), number)
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_sets_the_flag_and_the_exit_code(number, code):
    with StopRequest() as stop:
        assert (stop.requested, stop.exit_code) == (None, 0)
        send(number)
        assert (stop.requested, stop.exit_code) == (number.name, code)
    assert stop.requested == number.name


def test_the_first_signal_counts_and_terms_never_interrupt():
    with StopRequest() as stop:
        send(signal.SIGTERM, times=3)
        send(signal.SIGINT)
    assert stop.exit_code == 143


def test_a_second_ctrl_c_within_two_seconds_interrupts():
    with pytest.raises(KeyboardInterrupt), StopRequest():
        send(signal.SIGINT, times=2)


def test_a_second_ctrl_c_after_two_seconds_does_not(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("fieldwatch.checkpoint.signals.time.monotonic", lambda: now[0])
    with StopRequest() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            now[0] += 2.5
    assert stop.requested == "SIGINT"


def test_the_handlers_before_return():
    def mine(*_):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    interrupt = signal.getsignal(signal.SIGINT)  # a process in the background may ignore it
    try:
        with StopRequest():
            assert signal.getsignal(signal.SIGTERM) is not mine
            assert signal.getsignal(signal.SIGINT) is not interrupt
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_it_says_so():
    caught = []

    def enter():
        try:
            StopRequest().__enter__()
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "must be entered in the main thread" in caught[0]


def test_forked_workers_ignore_ctrl_c_and_end_on_term():
    with StopRequest() as stop:
        worker = os.fork()
        if not worker:
            time.sleep(10)
            os._exit(7)
        time.sleep(0.05)
        os.kill(worker, signal.SIGINT)
        time.sleep(0.05)
        assert os.waitpid(worker, os.WNOHANG) == (0, 0)
        os.kill(worker, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGTERM
        assert stop.requested is None
