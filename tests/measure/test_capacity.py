import psutil
import pytest

from fieldwatch.measure.capacity import process_capacity

GB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Provide 100 GiB of free memory, and control groups with their membership file in a folder."""
    real = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=100 * GB))
    return tmp_path


def group(folder, limit, usage=None, stat="", *, version=2):
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip((*names, "memory.stat"), (limit, usage, stat), strict=True):
        if value is not None:
            (folder / name).write_text(f"{value}\n")


def capacity(machine, membership, resident=2 * GB):
    (machine / "membership").write_text(membership)
    return process_capacity(resident, cgroups=machine / "cgroup", membership=machine / "membership")


def test_without_groups_it_is_what_is_free_and_what_the_process_has(machine):
    missing = machine / "missing"
    assert process_capacity(2 * GB, cgroups=missing, membership=missing) == 102 * GB


def test_a_group_leaves_its_limit_without_what_others_use(machine):
    group(machine / "cgroup/job", 10 * GB, 5 * GB)
    assert capacity(machine, "0::/job\n") == 7 * GB


def test_file_cache_is_given_up_before_memory_runs_out(machine):
    group(machine / "cgroup/job", 10 * GB, 9 * GB, f"anon 5\ninactive_file {6 * GB}\ntotal_inactive_file 1")
    assert capacity(machine, "0::/job\n") == 9 * GB


def test_the_tightest_of_the_groups_around_counts(machine):
    group(machine / "cgroup/user", 6 * GB, 4 * GB)
    group(machine / "cgroup/user/job", "max", 3 * GB)
    assert capacity(machine, "0::/user/job\n") == 4 * GB


def test_in_a_container_the_mounted_top_is_the_own_group(machine):
    group(machine / "cgroup", 8 * GB, 2 * GB)
    assert capacity(machine, "0::/docker/4711\n") == 8 * GB


def test_version_1_has_other_names_and_a_huge_number_for_no_limit(machine):
    table = "9:name=systemd:/\n4:cpu,memory:/user/job\n1:cpu:/\n0::/\n"
    group(machine / "cgroup/memory/user", 9223372036854771712, 3 * GB, version=1)
    assert capacity(machine, table) == 102 * GB
    group(machine / "cgroup/memory/user/job", 5 * GB, 4 * GB, f"total_inactive_file {1 * GB}", version=1)
    assert capacity(machine, table) == 4 * GB


def test_a_group_that_is_over_its_limit_leaves_nothing_and_no_debt(machine):
    group(machine / "cgroup/job", 1 * GB, 50 * GB)
    assert capacity(machine, "0::/job\n", resident=0) == 0


@pytest.mark.parametrize("path", ["/../../etc", "/", "", "/a:b"])
def test_odd_paths_are_harmless(machine, path):
    assert capacity(machine, f"0::{path}\n") == 102 * GB
