"""Files that are there whole or not at all."""

import pytest

from fieldwatch.record import whole_file


def test_a_file_gets_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with whole_file(path) as draft:
        draft.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_who_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="disk"), whole_file(path) as draft:
        draft.write_text("half")
        raise OSError("disk is full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
