"""Files are written atomically, and only regular files are opened for writing."""

import os
from pathlib import Path

import pytest

from fieldwatch.base import (
    InputError,
    open_for_append,
    open_for_update,
    open_new,
    output_name,
    whole_file,
    whole_folder,
    write_file,
    write_synced,
)


def test_a_file_gets_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with whole_file(path) as draft:
        draft.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="disk"), whole_file(path) as draft:
        draft.write_text("half")
        raise OSError("disk is full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_its_target_unchanged(tmp_path):
    (tmp_path / "mine").write_text("mine")
    path = tmp_path / "out"
    path.symlink_to(tmp_path / "mine")
    with whole_file(path) as draft:
        draft.write_text("new")
    assert not path.is_symlink()
    assert path.read_text() == "new"
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_longest_name_leaves_space_for_a_temporary_name(tmp_path):
    with whole_file(tmp_path / output_name("x" * 500)) as draft:
        draft.write_text("x")


@pytest.mark.parametrize("opened", [open_for_append, open_new, open_for_update])
@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_only_regular_files_are_opened_for_writing(tmp_path, opened, kind):
    target = tmp_path / "target"
    path = tmp_path / "journal.jsonl"
    if kind == "link":
        target.write_text("mine")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    with pytest.raises(InputError, match=r"journal\.jsonl"):
        opened(path)
    assert target.exists() == (kind == "link")
    assert kind != "link" or target.read_text() == "mine"


def test_files_are_appended_truncated_and_updated(tmp_path):
    path = tmp_path / "deep" / "file"
    for text in (b"one", b"two"):
        with open_for_append(path) as file:
            file.write(text)
    assert path.read_bytes() == b"onetwo"
    with open_for_update(path) as file:
        file.write(b"O")
    assert path.read_bytes() == b"Onetwo"
    with open_new(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(FileNotFoundError):
        open_for_update(tmp_path / "missing")


def test_a_durable_file_is_on_the_disk_before_it_gets_its_name_and_its_name_before_the_call_returns(
    tmp_path, monkeypatch
):
    calls = []
    fsync = os.fsync
    replace = Path.replace

    def noted_fsync(descriptor):
        calls.append(("fsync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def noted_replace(self, target):
        calls.append(("replace", target.name))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    path = tmp_path / "deep" / "file.txt"
    for text in (b"old", b"new"):
        calls.clear()
        assert write_file(path, text, durable=True) == path
        assert path.read_bytes() == text
        assert [name for name, _ in calls] == ["fsync", "replace", "fsync"]
        assert calls[0][1].startswith(".file.txt.")
        assert calls[2][1] == "deep"
    calls.clear()
    write_file(path, b"quick")
    assert calls == [("replace", "file.txt")]
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_sync_keeps_the_old_file(tmp_path, monkeypatch):
    path = write_file(tmp_path / "file.txt", b"old")

    def fails(_):
        raise OSError("disk")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="disk"):
        write_file(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_synced_file_contains_all_pieces_and_no_link_is_followed(tmp_path):
    path = tmp_path / "file"
    write_synced(path, [b"one", memoryview(b"two"), b""])
    assert path.read_bytes() == b"onetwo"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        write_synced(tmp_path / "link", [b"x"])
    assert path.read_bytes() == b"onetwo"


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "folder"
    with pytest.raises(RuntimeError, match="half"), whole_folder(path) as draft:
        (draft / "a").write_text("1")
        raise RuntimeError("half")
    assert list(path.parent.iterdir()) == []
    with whole_folder(path) as draft:
        (draft / "a").write_text("1")
        assert not path.exists()
    assert [file.name for file in path.iterdir()] == ["a"]
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_with_content_is_replaced_only_if_asked(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "of the user").write_text("1")
    with pytest.raises(OSError, match="not empty"), whole_folder(path) as draft:
        (draft / "a").write_text("1")
    assert [file.name for file in path.iterdir()] == ["of the user"]
    with whole_folder(path, replace=True) as draft:
        (draft / "a").write_text("1")
    assert [file.name for file in path.iterdir()] == ["a"]
    assert list(tmp_path.iterdir()) == [path]
