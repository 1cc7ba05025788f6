import pytest

from fieldwatch.base import InputError
from fieldwatch.cli.profiling import ProfileFlags, spelled_out


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--profile-tensors"], ["--profile-tensors", "50"]),
        (["--profile-tensors", "10"], ["--profile-tensors", "10"]),
        (["--profile-tensors=10"], ["--profile-tensors", "10"]),
        (["--profile_tensors", "True"], ["--profile-tensors", "50"]),
        (["--profile_tensors", "False"], []),
        (["--profile-tensors", "--seed", "3"], ["--profile-tensors", "50", "--seed", "3"]),
        (["--seed", "3", "--profile-tensors"], ["--seed", "3", "--profile-tensors", "50"]),
        (["--profile-tensors", "-5"], ["--profile-tensors", "-5"]),
        (["RUN", "--json"], ["RUN", "--json"]),
    ],
)
def test_the_switch_with_and_without_its_number(given, meant):
    assert spelled_out(given) == meant


def test_a_value_that_is_no_number_is_refused():
    with pytest.raises(InputError, match="'often'"):
        spelled_out(["--profile-tensors=often"])


def test_the_flags_become_a_profile():
    profile = ProfileFlags(profile_tensors=10, profile_window=(5, 9), profile_large_mb=7).chosen()
    assert (profile.interval, profile.window, profile.large_mb) == (10, (5, 9), 7)
    assert ProfileFlags().chosen() is None


def test_snapshots_need_no_profile():
    profile = ProfileFlags(snapshot_at=(10, 20)).chosen()
    assert (profile.interval, profile.snapshot_at) == (0, (10, 20))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"profile_window": (1, 2)}, "--profile-window needs --profile-tensors"),
        ({"profile_tensors": -5}, "interval.*got -5"),
        ({"profile_tensors": 0}, "interval.*got 0"),
        ({"profile_tensors": 5, "profile_window": (9, 2)}, "window.*got 9 2"),
        ({"snapshot_at": (-2,)}, r"snapshot.*0-based.*\(-2,\)"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags, message):
    with pytest.raises(InputError, match=message):
        ProfileFlags(**flags).chosen()
