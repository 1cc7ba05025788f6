"""What the checks of annotations and shapes refuse, which every call into fieldwatch is under in tests."""

from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor


def scaled(points: Float[Tensor, "n 3"], weights: Float[Tensor, " n"], cut: int = 0) -> Float[Tensor, "n 3"]:
    return (points * weights[:, None])[cut:]


def test_a_name_has_one_size_in_all_arguments(check):
    call = check(scaled)
    assert call(torch.ones(4, 3), torch.ones(4)).shape == (4, 3)
    with pytest.raises(TypeCheckError, match="weights"):
        call(torch.ones(4, 3), torch.ones(5))


def test_it_has_the_same_in_what_is_returned(check):
    with pytest.raises(TypeCheckError, match="return"):
        check(scaled)(torch.ones(4, 3), torch.ones(4), cut=1)


def test_it_may_have_another_in_the_next_call_and_in_a_call_within(check):
    halved = check(scaled)

    def both(points: Float[Tensor, "n 3"]) -> Float[Tensor, " n"]:
        halved(points[:1], torch.ones(1))
        return points[:, 0]

    call = check(both)
    assert [len(call(torch.ones(n, 3))) for n in (4, 5)] == [4, 5]
    with pytest.raises(TypeCheckError):
        call(torch.ones(4, 2))
    assert len(call(torch.ones(6, 3))) == 6


def test_the_kind_of_number_is_checked(check):
    with pytest.raises(TypeCheckError, match="points"):
        check(scaled)(torch.ones(4, 3, dtype=torch.int64), torch.ones(4))


def test_a_shape_is_found_within_other_annotations(check):
    def longest(parts: list[Float[Tensor, " n"]] | None, other: Float[Tensor, " n"]) -> int:
        return len(other) if parts is None else len(parts[0])

    call = check(longest)
    assert call(None, torch.ones(2)) == 2
    with pytest.raises(TypeCheckError, match="other"):
        call([torch.ones(3)], torch.ones(2))


def test_annotations_without_a_shape_are_checked(check):
    def shown(count: int, name: "str", mode: Literal["a", "b"] = "a", *, factor: float = 1.0) -> str | None:
        return f"{count}{name}{mode}{factor}" if count else 0

    call = check(shown)
    assert call(1, "x", factor=2) == "1xa2"  # an int is acceptable as a float
    for words, named in ((("1", "x"), "count"), ((1, 2), "name"), ((1, "x", "c"), "mode"), ((0, "x"), "return")):
        with pytest.raises(TypeCheckError, match=named):
            call(*words)


def test_arguments_of_a_generator_function_are_checked_at_the_call(check):
    def counted(count: int) -> Iterator[int]:
        yield from range(count)

    call = check(counted)
    assert list(call(3)) == [0, 1, 2]
    with pytest.raises(TypeCheckError, match="count"):
        call("3")


def test_a_name_that_only_a_type_checker_knows_is_passed_over(check):
    def read(file: "OnlyForTypes", size: int) -> int:
        return size

    call = check(read)
    assert call(object(), 2) == 2
    with pytest.raises(TypeCheckError, match="size"):
        call(object(), "2")
