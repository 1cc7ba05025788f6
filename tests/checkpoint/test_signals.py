"""Signals set a flag; two ctrl-C stop at once; workers and previous handlers are not affected."""

import hashlib
import os
import signal
import socket
import threading
import time

import pytest

from fieldwatch.checkpoint import StopRequest


def send(number, times=1):
    for _ in range(times):
        os.kill(os.getpid(), number)
        time.sleep(0.01)


CODES = [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "code"), CODES)
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
    assert "main thread" in caught[0]


def sleeping_worker():
    """Fork a sleeping process, which exits with 7 if nothing ends it in time."""
    worker = os.fork()
    if not worker:
        time.sleep(10)
        os._exit(7)
    time.sleep(0.05)
    return worker


def test_forked_workers_ignore_ctrl_c_and_end_on_term():
    with StopRequest() as stop:
        worker = sleeping_worker()
        os.kill(worker, signal.SIGINT)
        time.sleep(0.05)
        assert os.waitpid(worker, os.WNOHANG) == (0, 0)
        os.kill(worker, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGTERM
        assert stop.requested is None


def test_a_run_under_nohup_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            send(signal.SIGHUP)
            assert not stop.received
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def rounds_that_last(seconds):
    """Return the number of hash rounds that take this much CPU time in one C call, during which no handler runs."""
    rounds = 100_000
    took = 0.0
    while took < 0.02:
        rounds *= 2
        began = time.process_time()
        hashlib.pbkdf2_hmac("sha256", b"long", b"call", rounds)
        took = time.process_time() - began
    return int(rounds * seconds / took)


@pytest.mark.machine
def test_the_time_of_arrival_is_known_although_a_long_call_holds_the_handler_up():
    rounds = rounds_that_last(0.8)
    with StopRequest() as stop:
        sent = []
        sender = threading.Timer(0.1, lambda: (sent.append(time.monotonic()), os.kill(os.getpid(), signal.SIGTERM)))
        sender.start()
        hashlib.pbkdf2_hmac("sha256", b"long", b"call", rounds)
        ended = time.monotonic()
        sender.join()
        assert stop.received
        assert ended - sent[0] > 0.2, "the call was to be longer than this"
        assert stop.arrived - sent[0] < (ended - sent[0]) / 2
        assert stop.waited >= ended - stop.arrived


def test_a_signal_is_overdue_when_the_patience_is_over():
    with StopRequest(patience=60) as stop:
        assert not stop.overdue
        send(signal.SIGTERM)
        assert not stop.overdue
        stop.patience = 0.1
        time.sleep(0.15)
        assert stop.overdue


class GivenUpError(Exception):
    pass


def give_up():
    raise GivenUpError


@pytest.mark.machine
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_wait_that_may_be_given_up_is_when_the_patience_is_over(number):
    began = time.monotonic()
    with StopRequest(patience=0.3) as stop:
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        with pytest.raises(GivenUpError), stop.abandonable(give_up):
            threading.Event().wait(20)
        assert stop.requested == number.name
    assert 0.3 < time.monotonic() - began < 10


@pytest.mark.machine
def test_a_wait_that_ends_in_time_is_left_alone():
    with StopRequest(patience=0.3) as stop:
        send(signal.SIGTERM)
        with stop.abandonable(give_up):
            time.sleep(0.05)
        time.sleep(0.6)
        assert stop.overdue


@pytest.mark.machine
def test_the_signals_of_a_forked_worker_are_not_the_main_process_s():
    with StopRequest() as stop:
        worker = sleeping_worker()
        os.kill(worker, signal.SIGTERM)
        os.waitpid(worker, 0)
        ended = time.monotonic()
        time.sleep(0.05)
        send(signal.SIGUSR1)
        assert stop.arrived > ended


def test_whoever_listens_for_signals_already_keeps_that():
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno())
    try:
        with StopRequest() as stop:
            send(signal.SIGTERM)
            assert stop.arrived is not None
        assert reader.recv(10) == bytes([signal.SIGTERM])
        assert signal.set_wakeup_fd(-1) == writer.fileno()
    finally:
        signal.set_wakeup_fd(before)
        reader.close()
        writer.close()
