"""Kernels compile for every architecture without a GPU; compiled ones are kept, and survive damage and concurrency."""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fieldwatch.recon.render.gpu import KernelsUnavailable, compilation

HERE = Path(__file__).parent
REGISTERS = 64
"""Registers per thread with which four blocks of 256 threads fit on a multiprocessor."""
SHARED = 16 << 10
"""Bytes of shared memory with which six blocks fit on a multiprocessor of 100 KB."""
MORE = {
    "project_forward": (96, 0, 16),  # a Gaussian's matrices; one or two numbers spill on two architectures
    "project_backward": (152, 0, 0),  # as above, with their gradients: three blocks of 128 threads fit
    "blend_backward": (REGISTERS, 27 << 10, 0),  # a tile's gradients, and eight Gaussians' weights in each pixel
    # A sample's Gaussian and each of its neighbors, with their gradients: four blocks of 128 threads fit.
    "surface_exponents": (128, 0, 0),
    "surface_sums": (128, 0, 0),
    # Blocks of 64 or 32 threads, whose points have all their inputs, and gradients by them, in shared memory.
    "sdf_16": (80, SHARED, 0),
    "sdf_64": (80, 20 << 10, 0),
    "sdf_backward_16": (144, 28 << 10, 0),
    "sdf_backward_64": (144, 42 << 10, 0),
    # A block per view, and a thread per view: double precision, and too few to fill a multiprocessor.
    "place_rays_backward": (80, SHARED, 0),
    "move_poses_backward": (96, SHARED, 0),
}
"""Kernels that take more registers, shared memory or spilled bytes: their limits, and why."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fieldwatch" / "gpu"


@pytest.mark.timeout(600)
def test_every_kernel_compiles_for_every_architecture_within_its_limits(benchmark):
    measure = benchmark("gpu_kernels")
    found = measure.all_resources([*measure.sources(), HERE / "machine.cu"])
    sys.stdout.write(measure.table(found))
    assert {one.architecture for one in found} == set(measure.ARCHITECTURES)
    for one in found:
        registers, shared, spills = MORE.get(one.kernel, (REGISTERS, SHARED, 0))
        assert one.registers <= registers, one
        assert one.shared <= shared, one
        assert one.spills <= spills, one


def test_a_compiled_file_is_kept_and_a_damaged_one_is_compiled_again(cache):
    said = []
    image = compilation.cubin(HERE / "machine.cu", "sm_80", announce=said.append)
    assert image.startswith(b"\x7fELF")
    assert len(said) == 2  # before and after
    assert compilation.cubin(HERE / "machine.cu", "sm_80", announce=said.append) == image
    assert len(said) == 2
    (kept,) = cache.iterdir()
    for damaged in (kept.read_bytes()[:-9], b"", b"x" + kept.read_bytes()[1:]):
        kept.write_bytes(damaged)
        assert compilation.cubin(HERE / "machine.cu", "sm_80") == image


def test_concurrent_first_starts_keep_one_file(cache):
    with ThreadPoolExecutor(4) as pool:
        images = set(pool.map(lambda _: compilation.cubin(HERE / "machine.cu", "sm_75"), range(4)))
    assert len(images) == 1
    assert len(list(cache.iterdir())) == 1


def test_another_source_or_header_or_architecture_is_another_file(cache, tmp_path):
    source = Path(shutil.copy(HERE / "machine.cu", tmp_path))
    compilation.cubin(source, "sm_80")
    compilation.cubin(source, "sm_86")
    (tmp_path / "more.h").write_text("/* a header */\n")
    compilation.cubin(source, "sm_80")
    source.write_text(source.read_text() + "\n")
    compilation.cubin(source, "sm_80")
    assert len(list(cache.iterdir())) == 4


def test_a_source_that_does_not_compile_names_the_line(tmp_path):
    (tmp_path / "wrong.cu").write_text('#include "kernel.h"\nKERNEL(wrong, 32, float *x) { PHASE { y = 0; } }\n')
    with pytest.raises(KernelsUnavailable, match=r"wrong\.cu\(2\)"):
        compilation.compiled(tmp_path / "wrong.cu", "sm_80")


def test_an_unknown_architecture_is_named():
    with pytest.raises(KernelsUnavailable, match="sm_10 "):
        compilation.compiled(HERE / "machine.cu", "sm_10")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(KernelsUnavailable, match="XDG_CACHE_HOME"):
        compilation.cubin(HERE / "machine.cu", "sm_80")


def test_without_nvrtc_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compilation, "_candidates", lambda: ["libnvrtc-that-is-not-there.so"])
    compilation._nvrtc.cache_clear()
    with pytest.raises(KernelsUnavailable, match="nvidia-cuda-nvrtc"):
        compilation.compiled(HERE / "machine.cu", "sm_80")
