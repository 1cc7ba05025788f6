"""The background worker: one task at a time, at low priority, and no exception is lost."""

import os
import threading

import pytest

from fieldwatch.checkpoint import BackgroundWorker, CheckpointError
from fieldwatch.checkpoint.worker import NICENESS


@pytest.fixture
def saver():
    made = BackgroundWorker("test-saver")
    yield made
    made.close(5)


def test_one_piece_of_work_at_a_time_on_a_thread_of_low_priority(saver):
    go = threading.Event()
    seen = []

    def work():
        seen.append((threading.current_thread().name, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
        go.wait(5)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    saver.begin(work)
    assert saver.busy
    with pytest.raises(RuntimeError, match=r"test-saver.*wait\(\)"):
        saver.begin(work)
    assert not saver.wait(0.01)
    go.set()
    assert saver.wait(5)
    assert seen == [("test-saver", min(before + NICENESS, NICENESS) if before <= 0 else NICENESS)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("no"), SystemExit(3)])
def test_whatever_the_work_raises_reaches_the_training_once(saver, error):
    def work():
        raise error

    saver.begin(work)
    saver.wait()
    with pytest.raises(CheckpointError, match=f"unexpected {type(error).__name__} in the thread test-saver") as caught:
        saver.raise_failure()
    assert caught.value.__cause__ is error
    saver.raise_failure()
    done = []
    saver.begin(lambda: done.append(1))
    saver.wait()
    assert done == [1]


def test_closing_lets_the_work_end_and_does_not_wait_for_ever():
    go = threading.Event()
    done = []

    def work():
        go.wait(5)
        done.append(1)

    saver = BackgroundWorker()
    saver.begin(work)
    assert not saver.close(0.01)
    go.set()
    assert saver.wait(5)
    assert saver.close()
    assert done == [1]
    assert BackgroundWorker().close()
