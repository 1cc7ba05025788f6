import copy

import pytest

from fieldwatch.base import ExistingPathError, InputError, MissingPackageError, MissingPathError


@pytest.mark.parametrize(
    ("kind", "known_as"),
    [
        (InputError, ValueError),
        (MissingPathError, FileNotFoundError),
        (ExistingPathError, FileExistsError),
        (MissingPackageError, ImportError),
    ],
)
def test_an_input_error_can_be_caught_as_the_builtin_error(kind, known_as):
    error = kind("runs/mine is missing: name another folder")
    assert isinstance(error, InputError)
    assert isinstance(error, known_as)
    assert str(error).startswith("runs/mine ")
    assert str(copy.copy(error)) == str(error)
