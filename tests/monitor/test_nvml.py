import pynvml
import pytest

from fieldwatch.monitor.nvml import Nvml, NvmlQuery


def test_what_the_driver_says_of_itself(with_cards, nvml):
    with_cards(nvml.card(), nvml.card())
    library = Nvml()
    assert (library.absent, library.driver, library.cuda, library.count()) == ("", "580.95.05", "13.0", 2)


@pytest.mark.parametrize("reason", ["LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "NO_PERMISSION"])
def test_no_driver_is_a_reason_and_no_error(with_cards, nvml, reason):
    fake = with_cards(driver=nvml.failure(reason))
    library = Nvml()
    library.close()
    assert (library.absent, library.count()) == (str(nvml.failure(reason)), 0)
    assert fake.calls == ["nvmlInit"]


def test_a_handle_is_asked_for_once_and_a_failed_one_again(with_cards, nvml):
    card = nvml.card(Handle=nvml.failure("GPU_IS_LOST"))
    fake = with_cards(card)
    library = Nvml()
    ask = NvmlQuery()
    assert library.handle(0, ask) is None
    del card["Handle"]
    assert library.handle(0, ask) is card
    assert library.handle(0, ask) is card
    assert fake.calls.count("nvmlDeviceGetHandleByIndex") == 2
    assert ask.missing == {}


def test_closing_twice_gives_the_library_back_once(with_cards, nvml):
    fake = with_cards(nvml.card())
    library = Nvml()
    library.close()
    library.close()
    assert fake.calls.count("nvmlShutdown") == 1
    assert library.count() == 0


def test_a_library_older_than_its_binding_is_a_reason_too(with_cards, nvml):
    mismatch = pynvml.NVMLLibraryMismatchError("Unversioned function called")
    card = nvml.card(ComputeRunningProcesses=mismatch)
    with_cards(card)
    ask = NvmlQuery()
    assert ask("processes", "nvmlDeviceGetComputeRunningProcesses", card) is None
    assert ask.missing == {"processes": "Unversioned function called"}


def test_a_call_that_the_installed_binding_lacks_is_a_reason(with_cards, nvml):
    with_cards(nvml.card())
    ask = NvmlQuery()
    assert ask("future", "nvmlDeviceGetSomethingNew", nvml.card()) is None
    assert ask.missing == {"future": "the installed nvidia-ml-py has no nvmlDeviceGetSomethingNew"}
