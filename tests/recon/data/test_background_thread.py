"""Waiting for a dead decoding thread raises an error instead of blocking forever."""

import os
import threading

import pytest

from fieldwatch.recon.data.background_thread import BackgroundThread


def test_results_come_in_order_and_errors_are_their_own():
    def read(number):
        if number == 2:
            raise TimeoutError("the disk does not answer")
        return number, threading.current_thread().name

    thread = BackgroundThread("reads-frames")
    try:
        asked = [thread.submit(read, number) for number in range(4)]
        assert thread.result(asked[0]) == (0, "reads-frames_0")
        with pytest.raises(TimeoutError, match="the disk"):
            thread.result(asked[2])
        assert thread.result(asked[3])[0] == 3
    finally:
        thread.close()


def test_a_thread_that_did_not_survive_a_fork_is_named(monkeypatch):
    monkeypatch.setattr("fieldwatch.recon.data.background_thread.CHECK_INTERVAL", 0.05)
    thread = BackgroundThread("reads-frames")
    hold = threading.Event()
    asked = thread.submit(lambda _: hold.wait(20), 0)
    while not thread._threads:
        os.sched_yield()
    child = os.fork()
    if not child:
        try:
            thread.result(asked)
        except RuntimeError as error:
            os._exit(3 if "thread reads-frames has died" in str(error) else 4)
        os._exit(5)
    hold.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    thread.close()
