from dataclasses import dataclass, field
from typing import Literal

import pytest

from fieldwatch.base import InputError
from fieldwatch.record.config import as_stored_now, config_from_plain, formerly, with_current_names


@dataclass(frozen=True, kw_only=True)
class Inner:
    color: Literal["gray", "red"] = field(default="red", metadata=formerly("colour", grey="gray"))


@dataclass(frozen=True, kw_only=True)
class Outer:
    neighbors: int = field(default=16, metadata=formerly("neighbours"))
    inner: Inner | None = None


def test_former_names_and_values_are_read_as_the_current_ones():
    stored = {"neighbours": 8, "inner": {"colour": "grey"}}
    assert config_from_plain(Outer, stored) == Outer(neighbors=8, inner=Inner(color="gray"))
    assert with_current_names(Outer, stored) == {"neighbors": 8, "inner": {"color": "gray"}}


def test_current_names_are_left_alone():
    stored = {"neighbors": 8, "inner": {"color": "red"}}
    assert with_current_names(Outer, stored) == stored


def test_stored_values_are_not_modified():
    stored = {"neighbours": 8, "inner": {"colour": "grey"}}
    with_current_names(Outer, stored)
    assert stored == {"neighbours": 8, "inner": {"colour": "grey"}}


def test_a_config_of_no_dataclass_keeps_its_names():
    assert with_current_names(dict, {"neighbours": 8}) == {"neighbours": 8}


def test_a_value_that_was_never_known_is_still_refused():
    with pytest.raises(InputError, match="'blue'"):
        config_from_plain(Outer, {"inner": {"colour": "blue"}})


def test_settings_that_did_not_exist_yet_are_compared_at_their_defaults():
    assert as_stored_now(Outer, {"inner": {}}) == {"neighbors": 16, "inner": {"color": "red"}}
    assert as_stored_now(dict, {"rate": 1}) == {"rate": 1}
