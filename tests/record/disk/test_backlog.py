"""On a full disk, writes wait in order; nothing is lost, written twice or exceeds its limit."""

import errno
import os
import re

import pytest

from fieldwatch.base import DiskFullError, lacks_space
from fieldwatch.record import LineFile
from fieldwatch.record.disk import Reserve, WriteBacklog
from fieldwatch.record.disk.backlog import WriteQueue
from fieldwatch.record.disk.reserve import FINAL_BYTES, RESERVE, ROWS_BYTES
from fieldwatch.record.durable import SyncTracker


class Disk:
    """In-memory files on a disk of limited size; a reserve can release bytes."""

    def __init__(self, free):
        self.free = free
        self.files = {}
        self.errno = errno.ENOSPC

    def file(self, name):
        self.files[name] = b""

        def write(data):
            if len(data) > self.free:
                raise OSError(self.errno, os.strerror(self.errno))
            self.free -= len(data)
            self.files[name] += data

        return WriteQueue(write)


class Kept:
    """A reserve of a :class:`Disk`."""

    def __init__(self, disk, rows):
        self.disk = disk
        self.rows = rows
        self.whole = True

    def give_up(self, nbytes):
        given, self.rows = min(self.rows, nbytes), max(0, self.rows - nbytes)
        self.disk.free += given
        self.whole = self.whole and not given
        return given > 0

    def refill(self, *, beyond=0):
        return self.disk.free >= beyond

    def release(self):
        self.disk.free += self.rows
        self.rows = 0

    def close(self):
        self.release()


@pytest.fixture
def clock():
    times = [0.0]

    def now():
        times[0] += 1.0
        return times[0]

    return now


@pytest.fixture
def make(tmp_path, clock):
    def make(disk, *, rows=0, **limits):
        return WriteBacklog(tmp_path, _as_reserve(disk, rows), clock=clock, **limits)

    return make


def _as_reserve(disk, rows):
    """A fake reserve that passes runtime type checks."""
    kept = Kept(disk, rows)
    reserve = object.__new__(Reserve)
    for name in ("give_up", "refill", "release", "close"):
        setattr(reserve, name, getattr(kept, name))
    return reserve


def test_what_waits_is_written_in_order_when_there_is_room(make):
    disk = Disk(10)
    waiting = make(disk)
    one = disk.file("one")
    other = disk.file("other")
    one.attach(waiting)
    other.attach(waiting)
    for number in range(6):
        one.append(b"%d-one\n" % number, rows=1)
        other.append(b"%d-other\n" % number)
    assert disk.files["one"] == b"0-one\n"
    assert (waiting.rows, waiting.pause.rows) == (5, 5)
    pause = waiting.pause
    disk.free = 20
    waiting.retry()
    assert disk.files["one"] == b"0-one\n1-one\n2-one\n3-one\n"  # as far as there is room
    disk.free = 1 << 30
    waiting.retry()
    assert disk.files["one"] == b"".join(b"%d-one\n" % number for number in range(6))
    assert disk.files["other"] == b"".join(b"%d-other\n" % number for number in range(6))
    assert waiting.pause is None
    assert pause.over
    assert pause.rows == 5
    assert waiting.nbytes == 0


def test_rows_use_the_reserve_first_and_nothing_else_does(make):
    disk = Disk(0)
    waiting = make(disk, rows=30)
    journal = disk.file("journal")
    pictures = disk.file("pictures")
    journal.attach(waiting, from_reserve=True)
    pictures.attach(waiting)
    pictures.append(b"x" * 10)
    for _ in range(4):
        journal.append(b"y" * 10, rows=1)
    assert disk.files == {"journal": b"y" * 30, "pictures": b""}
    assert waiting.rows == 1


def test_the_disk_counts_as_free_only_when_the_reserve_is_back(make):
    disk = Disk(0)
    waiting = make(disk)
    queue = disk.file("rows")
    queue.attach(waiting)
    queue.append(b"12345")
    disk.free = 10  # enough for the row, but not for the reserve
    waiting.retry()
    assert disk.files["rows"] == b"12345"
    assert waiting.pause is not None
    disk.free = 1 << 30
    waiting.retry()
    assert waiting.pause is None


def test_too_much_is_an_error_and_optional_things_are_dropped_and_counted(make):
    disk = Disk(0)
    waiting = make(disk, limit=100, optional_limit=30)
    queue = disk.file("rows")
    queue.attach(waiting)
    for _ in range(5):
        queue.append(b"p" * 10, optional=True)
    assert waiting.pause.dropped == 2
    for _ in range(7):
        queue.append(b"r" * 10, rows=1)
    with pytest.raises(DiskFullError) as raised:
        queue.append(b"r" * 10, rows=1)
    assert raised.value.errno == errno.ENOSPC
    assert "100 bytes" in str(raised.value)
    assert waiting.close() == (7, 100)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EFBIG])
def test_errors_that_do_not_pass_are_raised_at_once(make, number):
    disk = Disk(0)
    disk.errno = number
    queue = disk.file("rows")
    queue.attach(make(disk))
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as raised:
        queue.append(b"x")
    assert raised.value.errno == number
    assert not queue.pending


def test_optional_work_is_left_out_and_last_words_use_what_is_left(make):
    disk = Disk(0)
    waiting = make(disk, rows=8)
    queue = disk.file("crash")

    def work():
        queue.append(b"words!")

    assert waiting.try_optional(work) is False
    assert waiting.pause.dropped == 1
    waiting.run_required(work)
    assert disk.files["crash"] == b"words!"
    with pytest.raises(OSError, match="No space left"):
        waiting.run_required(work)


def test_the_reserve_has_real_blocks_gives_them_up_in_pieces_and_is_gone_at_the_end(tmp_path):
    reserve = Reserve(tmp_path)
    path = tmp_path / RESERVE
    whole = ROWS_BYTES + FINAL_BYTES
    assert path.stat().st_size == whole
    assert path.stat().st_blocks * 512 >= whole
    pieces = 0
    while reserve.give_up(1):
        pieces += 1
    assert pieces == ROWS_BYTES // (256 << 10)
    assert path.stat().st_size == FINAL_BYTES  # rows never use the space for final writes
    assert path.stat().st_blocks * 512 <= FINAL_BYTES + 65536
    assert reserve.refill()
    reserve.release()
    assert path.stat().st_size == 0
    reserve.close()
    reserve.close()
    assert not path.exists()


def test_a_reserve_follows_no_link_and_takes_over_what_a_killed_process_left(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"photo")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RESERVE).symlink_to(precious)
    Reserve(tmp_path / "run").close()
    assert precious.read_bytes() == b"photo"
    (tmp_path / "run" / RESERVE).write_bytes(b"left")
    reserve = Reserve(tmp_path / "run")
    assert (tmp_path / "run" / RESERVE).stat().st_size == ROWS_BYTES + FINAL_BYTES
    reserve.close()


def test_no_room_for_the_reserve_is_an_error_that_passes_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFullError, match=f"{ROWS_BYTES + FINAL_BYTES:,} bytes") as raised:
        Reserve(tmp_path)
    assert lacks_space(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_what_a_failed_sync_may_have_lost_is_written_again_before_a_sync_is_believed(tmp_path, monkeypatch):
    calls = []
    real = (os.fsync, os.pwrite)
    fails = [errno.ENOSPC, errno.EIO]

    def fsync(file):
        calls.append("fsync")
        if fails:
            raise OSError(fails.pop(0), "the disk refused")
        real[0](file)

    def pwrite(file, data, place):
        calls.append(("pwrite", bytes(data), place))
        return real[1](file, data, place)

    with LineFile(tmp_path / "rows") as file:
        file.append(b"0\n")
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "pwrite", pwrite)
        for _ in range(2):
            with pytest.raises(OSError, match="the disk refused"):
                file.sync()
            file.append(b"1\n")
        file.sync()
        file.sync()
    again = [call for call in calls if call != "fsync"]
    assert again[0] == ("pwrite", b"0\n", 0)
    assert b"".join(data for _, data, _ in again[-3:]) == b"0\n1\n1\n"
    assert calls[-2:] == ["fsync", "fsync"]  # the last one had nothing to rewrite
    assert (tmp_path / "rows").read_bytes() == b"0\n1\n1\n"


def test_bytes_that_a_failed_sync_lost_for_good_are_an_error_from_then_on(tmp_path, monkeypatch):
    path = tmp_path / "rows"
    path.write_bytes(b"before\n")
    durable = SyncTracker(path, 7)
    with path.open("ab", buffering=0) as file:
        file.write(b"0\n")
        durable.note_write(b"0\n")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", lambda _file: (_ for _ in ()).throw(OSError(errno.EIO, "lost")))
            with pytest.raises(OSError, match="lost"):
                durable.sync(file.fileno())
        path.write_bytes(b"before\n\0\0")  # the disk's content in place of the lost bytes
        for _ in range(2):
            with pytest.raises(OSError, match="bytes 7 to 9 were lost"):
                durable.sync(file.fileno())
