import threading

import pytest
import torch

from fieldwatch.measure import FailedAllocation, OutOfMemoryNotifier, on_out_of_memory

EVENT = FailedAllocation(device=0, requested=5, limit=80, free=2)


class Observers(list):
    """A fake of torch's observer list: observers are attached and called in turn, and cannot be detached."""

    def fail(self):
        for observer in self:
            observer(0, 5, 80, 2)


@pytest.fixture
def torchs_end():
    return Observers()


@pytest.fixture
def bell(torchs_end):
    return OutOfMemoryNotifier(torchs_end.append)


def test_all_callbacks_are_called_with_the_facts(bell, torchs_end):
    heard = []
    bell.subscribe(lambda event: heard.append(("first", event)))
    bell.subscribe(lambda event: heard.append(("second", event)))
    torchs_end.fail()
    assert heard == [("first", EVENT), ("second", EVENT)]


def test_torch_is_given_one_observer_however_many_callbacks_there_are(bell, torchs_end):
    assert torchs_end == []
    for _ in range(3):
        with bell.subscribe(print):
            pass
    assert len(torchs_end) == 1


def test_a_detached_callback_is_not_called(bell, torchs_end):
    heard = []
    first = bell.subscribe(lambda _: heard.append("first"))
    with bell.subscribe(lambda _: heard.append("second")):
        first.detach()
        first.detach()
        torchs_end.fail()
    torchs_end.fail()
    assert heard == ["second"]


def test_a_callback_may_detach_itself(bell, torchs_end):
    heard = []
    watch = bell.subscribe(lambda _: (heard.append("once"), watch.detach()))
    bell.subscribe(lambda _: heard.append("always"))
    torchs_end.fail()
    torchs_end.fail()
    assert heard == ["once", "always", "always"]


def test_a_failing_callback_hides_neither_the_error_nor_the_other_callbacks(bell, torchs_end, capsys):
    heard = []
    watch = bell.subscribe(lambda _: heard.nothing_of_the_kind)
    bell.subscribe(heard.append)
    torchs_end.fail()
    assert heard == [EVENT]
    assert [type(failure) for failure in watch.failures] == [AttributeError]
    printed = capsys.readouterr().err
    assert "the out-of-memory handler failed" in printed
    assert "nothing_of_the_kind" in printed


def test_an_interrupt_is_not_held_back_and_the_next_ring_works(bell, torchs_end):
    def interrupted(_):
        raise KeyboardInterrupt

    with bell.subscribe(interrupted), pytest.raises(KeyboardInterrupt):
        torchs_end.fail()
    heard = []
    bell.subscribe(heard.append)
    torchs_end.fail()
    assert heard == [EVENT]


def test_a_callback_that_runs_out_of_memory_itself_is_not_called_for_that(bell, torchs_end):
    heard = []
    bell.subscribe(lambda event: (heard.append(event), torchs_end.fail()))
    torchs_end.fail()
    assert heard == [EVENT]


def test_another_threads_error_is_heard_meanwhile(bell, torchs_end):
    heard = []

    def callback(_):
        heard.append(threading.current_thread().name)
        if len(heard) == 1:
            other = threading.Thread(target=torchs_end.fail, name="other")
            other.start()
            other.join()

    bell.subscribe(callback)
    torchs_end.fail()
    assert heard == [threading.current_thread().name, "other"]


def test_an_attachment_that_failed_is_tried_again(torchs_end):
    answers = iter([RuntimeError("not yet"), None])

    def attach(observer):
        error = next(answers)
        if error:
            raise error
        torchs_end.append(observer)

    bell = OutOfMemoryNotifier(attach)
    heard = []
    with pytest.raises(RuntimeError, match="not yet"):
        bell.subscribe(heard.append)
    bell.subscribe(heard.append)
    torchs_end.fail()
    assert heard == [EVENT]


def test_without_a_gpu_it_says_what_is_wanted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="requires a CUDA"):
        on_out_of_memory(print)


def test_a_real_failure_on_a_gpu_is_heard_before_it_is_raised(gpu):
    heard = []

    def callback(event):
        heard.append((event, torch.cuda.memory_stats_as_nested_dict(gpu), torch.cuda.memory_snapshot()))
        raise ZeroDivisionError("a handler with a mistake")

    huge = 2**50
    with on_out_of_memory(callback) as watch, pytest.raises(torch.OutOfMemoryError):
        torch.empty(huge, dtype=torch.uint8, device=gpu)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(huge, dtype=torch.uint8, device=gpu)
    ((event, stats, segments),) = heard
    free, total = torch.cuda.mem_get_info(gpu)
    assert (event.device, event.requested, event.limit) == (torch.cuda.current_device(), huge, total)
    assert 0 < event.free <= total
    assert free > 0
    assert stats["num_ooms"] >= 1
    assert isinstance(segments, list)
    assert [type(failure) for failure in watch.failures] == [ZeroDivisionError]
