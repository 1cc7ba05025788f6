"""The launcher hands the driver what CUDA expects: a recorded driver of the test checks every argument."""

import ctypes
import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fieldwatch.recon.render.gpu import KernelFile, KernelsUnavailable, compilation, driver, kernels_problem, launcher

# A driver that runs nothing. It looks at its arguments as CUDA's would: 64 bits of addresses, values by address.
DRIVER = r"""
#include <string.h>
typedef struct { unsigned grid, threads; void *stream; long long count; float factor; void *in, *out; } Launch;
Launch launched;
int refuse;
int cuModuleLoadData(void **module, const void *image) {
    *module = (void *)0x1234567890;
    return refuse ? refuse : memcmp(image, "\x7f" "ELF", 4) ? 200 : 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = (char *)module + strlen(name);
    return module == (void *)0x1234567890 ? 0 : 400;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    if (function != (char *)0x1234567890 + strlen("reversed_sums") || y != 1 || z != 1 || ty != 1 || tz != 1) return 1;
    if (shared || extra) return 1;
    Launch l = {x, tx, stream, *(long long *)parameters[0], *(float *)parameters[1], *(void **)parameters[2],
                *(void **)parameters[3]};
    launched = l;
    return 0;
}
int cuGetErrorString(int code, const char **text) { *text = code == 209 ? "no kernel image" : "invalid"; return 0; }
"""


class Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint),
        ("threads", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("factor", ctypes.c_float),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
    ]


@pytest.fixture
def library(tmp_path, monkeypatch):
    """The driver of the test in place of CUDA's, and a torch with one GPU."""
    (tmp_path / "driver.c").write_text(DRIVER)
    built = tmp_path / "driver.so"
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", str(tmp_path / "driver.c"), "-o", str(built)], check=True)
    monkeypatch.setattr(driver, "_LIBRARIES", (str(built),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0x7FFF12345678))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    monkeypatch.setattr(launcher, "LAUNCHER", launcher.CudaLauncher())
    return ctypes.CDLL(str(built))


@pytest.fixture
def launch(request):
    file = KernelFile("machine.cu", request.path.parent)
    values = [ctypes.c_int64(1 << 40), ctypes.c_float(0.5), ctypes.c_void_p(0x7000DEADBEEF), ctypes.c_void_p()]
    kernel = file.kernels["reversed_sums"]
    return lambda: launcher.LAUNCHER.launch(file.path, (), kernel, 7, values, torch.device("cuda", 0))


def test_arguments_reach_the_driver_whole(library, launch, capfd):
    launch()
    seen = Launch.in_dll(library, "launched")
    assert (seen.grid, seen.threads, seen.stream) == (7, 32, 0x7FFF12345678)
    assert (seen.count, seen.factor, seen.input, seen.output) == (1 << 40, 0.5, 0x7000DEADBEEF, None)
    # The first use says that kernels are compiled; the next one says nothing.
    said = capfd.readouterr().err
    assert "machine.cu" in said
    assert "sm_89" in said
    launch()
    assert capfd.readouterr().err == ""


def test_a_refused_cubin_names_the_reason(library, launch):
    ctypes.c_int.in_dll(library, "refuse").value = 209
    with pytest.raises(KernelsUnavailable, match="no kernel image"):
        launch()


def test_a_missing_driver_is_named(monkeypatch):
    monkeypatch.setattr(driver, "_LIBRARIES", ("libcuda-that-is-not-there.so",))
    with pytest.raises(KernelsUnavailable, match="driver"):
        driver.CudaDriver()


def test_a_trial_is_made_once_and_its_verdict_kept(library, launch):
    file = KernelFile("machine.cu")
    tried = []

    def trial():
        tried.append(1)
        return "results differ by 3 %"

    assert kernels_problem(file, trial) == kernels_problem(file, trial) == "results differ by 3 %"
    assert len(tried) == 1


def test_kernels_that_cannot_be_had_are_a_problem_with_a_reason(library, launch, monkeypatch):
    def refuse(*_, **__):
        raise KernelsUnavailable("libnvrtc.so.12 is missing\nsecond line")

    monkeypatch.setattr(launcher, "cubin", refuse)
    assert kernels_problem(KernelFile("machine.cu"), launch) == "libnvrtc.so.12 is missing"
    assert compilation.SOURCES.is_dir()
