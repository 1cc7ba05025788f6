"""Building the kernels: once, whole, by two at a time, and a clear word where it cannot be."""

import ctypes
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from fieldwatch.recon.commands.kernels import check_kernels
from fieldwatch.recon.render import HashEncoding
from fieldwatch.recon.render.native import (
    NativeUnavailable,
    build,
    call,
    kernels,
    native_available,
    native_note,
    pointer,
)

PREBUILD = Path(__file__).parents[4] / "scripts" / "prebuild.py"
REPORT = "from fieldwatch.recon.render import native_available; print(native_available())"


@pytest.fixture(autouse=True)
def without_libraries(tmp_path, monkeypatch):
    """`make wheel` may have put libraries into this clone."""
    monkeypatch.setattr(build, "CARRIED", tmp_path / "none")


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache, and nothing remembered from earlier."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    yield tmp_path / "cache" / "fieldwatch" / "native"
    kernels._library.cache_clear()
    native_available.cache_clear()


def forget():
    kernels._library.cache_clear()
    native_available.cache_clear()


def compiler(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def quick(folder):
    return compiler(folder / "quickcc", 'exec cc "$@" -O0')


@pytest.fixture(scope="module")
def one_thread(tmp_path_factory):
    """The library as a compiler without OpenMP makes it."""
    if shutil.which("cc") is None:
        pytest.skip("no cc")
    library = tmp_path_factory.mktemp("one-thread") / "kernels.so"
    sources = sorted(str(source) for source in build.SOURCES.glob("*.c"))
    subprocess.run(["cc", *build.flags(parallel=False), "-O0", *sources, "-o", str(library), "-lm"], check=True)
    return library


def test_it_is_built_once(fresh, tmp_path, monkeypatch):
    count = tmp_path / "calls"
    monkeypatch.setenv(
        "CC", str(compiler(tmp_path / "mycc", f'echo x >> {count}; touch "$(echo "$@" | sed "s/.*-o //; s/ -lm//")"'))
    )
    assert build.built() == build.built()
    assert count.read_text() == "x\n"
    assert [path.name for path in fresh.iterdir()] == [build.built().name]


def test_two_build_at_once(fresh, tmp_path):
    """Four threads of one process and a slow compiler: every one gets a whole library, and nothing is left over."""
    slow = compiler(
        tmp_path / "slowcc",
        'out="$(echo "$@" | sed "s/.*-o //; s/ -lm//")"; echo half > $out; sleep 0.3; echo whole > $out',
    )
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setenv("CC", str(slow))
        paths = list(pool.map(lambda _: (path := build.built(), path.read_text()), range(4)))
    assert {text for _, text in paths} == {"whole\n"}
    assert len(list(fresh.iterdir())) == 1


def test_two_processes_build_and_load_at_once(fresh, tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no cc")
    environment = {**os.environ, "XDG_CACHE_HOME": str(fresh.parent.parent), "CC": str(quick(tmp_path))}
    started = [
        subprocess.Popen([sys.executable, "-c", REPORT], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in started] == ["(True, '')"] * 2
    assert [path.suffix for path in fresh.iterdir()] == [".so"]


@pytest.mark.usefixtures("fresh")
def test_no_compiler_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    forget()
    there, reason = native_available()
    assert not there
    assert "cc, gcc, clang" in reason
    with pytest.raises(NativeUnavailable, match="no C compiler"):
        call("fw_similarity_scratch", 1, 1, 1)


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", str(compiler(tmp_path / "badcc", "echo 'omp.h: no such file' >&2; exit 3")))
    with pytest.raises(NativeUnavailable, match=r"exit status 3.*omp\.h: no such file"):
        build.built()


def without_openmp(folder, library):
    """A compiler that knows no OpenMP, as that of macOS: it refuses the flag, and has no header.

    It has compiled the library before: what it makes is a copy.
    """
    return compiler(
        folder / "plaincc",
        'case "$*" in *-fopenmp*) echo "unsupported option -fopenmp" >&2; exit 1;; esac; '
        f'exec cp {library} "$(echo "$@" | sed "s/.*-o //; s/ -lm//")"',
    )


LOADED = """
import torch
from fieldwatch.recon.render.native import native_note
from fieldwatch.recon.render import HashEncoding

torch.set_num_threads(2)
torch.manual_seed(0)
encoding = HashEncoding(levels=4)
points = torch.rand(500, 3, requires_grad=True)
features = encoding(points)
features.square().sum().backward()
gradients = [parameter.grad for parameter in encoding.parameters()]
print(float(features.sum()).hex(), float(points.grad.sum()).hex(), *(float(one.sum()).hex() for one in gradients))
print(native_note())
"""


@pytest.mark.usefixtures("fresh")
def test_a_compiler_without_openmp_builds_kernels_of_one_thread_with_the_same_numbers(
    one_thread, tmp_path, python, surroundings
):
    found = {}
    for name, path in (("plain", without_openmp(tmp_path, one_thread)), ("usual", quick(tmp_path))):
        done = python(
            "-c", LOADED, environment=surroundings | {"XDG_CACHE_HOME": str(tmp_path / name), "CC": str(path)}
        )
        assert done.returncode == 0, done.stderr
        found[name] = done.stdout.splitlines()
    assert found["plain"][0] == found["usual"][0]
    assert found["usual"][1] == "None"
    (library,) = (tmp_path / "plain" / "fieldwatch" / "native").iterdir()
    assert not build.is_parallel(library)
    assert {"OpenMP", "$CC", str(library)} <= set(found["plain"][1].replace(":", "").split())


@pytest.mark.usefixtures("fresh")
def test_without_openmp_the_doctor_warns_and_keeps_the_kernels(one_thread, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", str(without_openmp(tmp_path, one_thread)))
    forget()
    check = check_kernels()
    assert check.facts["native_kernels"] is True
    assert [finding.severity for finding in check.findings] == ["warning"]
    assert "OpenMP" in check.findings[0].remedy


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", str(compiler(tmp_path / "slowcc", "exec sleep 20")))
    monkeypatch.setattr(build, "_PATIENCE", 0.2)
    with pytest.raises(NativeUnavailable, match="native kernels within"):
        build.built()


@pytest.fixture
def carried(fresh, one_thread, tmp_path, monkeypatch):
    """An installation whose wheel carries a library, on a machine without a compiler."""
    assert not fresh.exists()
    folder = tmp_path / "libraries"
    folder.mkdir()
    library = folder / build.carried_name(sys.platform, platform.machine(), wide=build.has_avx2())
    shutil.copy(one_thread, library)
    monkeypatch.setattr(build, "CARRIED", folder)
    monkeypatch.setenv("CC", str(tmp_path / "nowhere"))
    return library


def test_without_a_compiler_the_library_of_the_wheel_is_used_and_said(carried, fresh):
    assert build.built() == carried
    assert not build.is_parallel(carried)
    assert not fresh.exists()
    forget()
    assert native_available() == (True, "")
    assert "$CC" in native_note()
    points = torch.rand(100, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    HashEncoding(levels=4)(points).square().sum().backward()
    assert points.grad.isfinite().all()


def test_a_compiler_comes_before_the_library_of_the_wheel(carried, fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", str(compiler(tmp_path / "mycc", 'touch "$(echo "$@" | sed "s/.*-o //; s/ -lm//")"')))
    assert build.built().parent == fresh
    assert build.is_parallel(build.built())


def test_a_library_of_other_sources_or_of_another_machine_is_not_loaded(carried):
    for other in (f"one-thread-{sys.platform}-{platform.machine()}-0123.so", "one-thread-other-vax-0123.so"):
        carried = carried.rename(carried.with_name(other))
        with pytest.raises(NativeUnavailable, match="no C compiler"):
            build.built()


def test_a_library_of_the_wheel_that_cannot_be_loaded_asks_for_a_compiler(carried):
    carried.write_text("not a library")
    forget()
    there, reason = native_available()
    assert not there
    assert "rebuild" not in reason
    assert "compiler" in reason


def test_wheels_carry_a_library_for_this_machine(tmp_path):
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang (extra wheel) is not installed")
    kind = build.kind_of_machine(sys.platform, platform.machine(), wide=build.has_avx2())
    subprocess.run([sys.executable, PREBUILD, "--only", kind, "--out", tmp_path], check=True)
    (library,) = tmp_path.iterdir()
    assert library.name == build.carried_name(sys.platform, platform.machine(), wide=build.has_avx2())
    loaded = ctypes.CDLL(str(library))
    assert [name for name in kernels._SIGNATURES if not hasattr(loaded, name)] == []


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NativeUnavailable, match="XDG_CACHE_HOME"):
        build.built()


@pytest.mark.usefixtures("fresh")
def test_a_damaged_library_is_named():
    path = build.cache_folder() / "x"
    path.parent.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        path.write_text("not a library")
        patch.setattr(kernels, "built", lambda: path)
        forget()
        there, reason = native_available()
    assert not there
    assert "rebuild it" in reason


def test_other_sources_make_another_library(fresh, tmp_path, monkeypatch):
    before = build.SOURCES
    for source in before.glob("*.[ch]"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "adam.c").write_text((before / "adam.c").read_text() + "\n")
    monkeypatch.setattr(
        build, "_compile", lambda path, _: (path.parent.mkdir(parents=True, exist_ok=True), path.touch())
    )
    first = build.built()
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    assert build.built() != first
    assert first.parent == fresh


def test_builtins_that_gcc_11_lacks_are_behind_one_macro():
    """Ubuntu 22.04 has gcc 11: what it cannot compile makes a CPU train 40 times as long."""
    uses = [(path.name, path.read_text().count("__builtin_shufflevector")) for path in build.SOURCES.glob("*.[ch]")]
    assert [use for use in uses if use[1]] == [("vectors.h", 1)]


def test_one_place_asks_whether_the_processor_fuses_operations():
    """clang does not define gcc's name for it: kernels that ask for that alone would round differently."""
    uses = [path.name for path in build.SOURCES.glob("*.[ch]") if "__FP_FAST_FMAF" in path.read_text()]
    assert uses == ["lattice.h"]


@pytest.mark.parametrize("word", ["fast-math", "finite", "contract"])
def test_flags_that_change_numbers_are_never_asked_for(word):
    assert not [flag for flag in build.flags() if word in flag]


def test_a_tensor_with_gaps_is_refused():
    with pytest.raises(ValueError, match=r"the CPU, got \(3, 2\)"):
        pointer(torch.zeros(3, 4)[:, :2])
