"""The doctor tries the GPU: steps that work, a gsplat without kernels, and a step that fails or differs."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from fieldwatch.recon.commands import gpu
from fieldwatch.recon.render.splats import gsplat_problem


@pytest.fixture(autouse=True)
def asked_anew():
    gsplat_problem.cache_clear()
    yield
    gsplat_problem.cache_clear()


@pytest.fixture
def broken_kernels(fake_cuda, monkeypatch):
    """A GPU on which the splat kernels compute something else: every launch of one is left out."""
    run = fake_cuda.emulator.launch

    def launch(source, options, kernel, *rest):
        if kernel.name != "blend_backward":
            run(source, options, kernel, *rest)

    monkeypatch.setattr(fake_cuda.emulator, "launch", launch)


def test_the_steps_are_those_of_the_cpu(fake_cuda):
    check = gpu.check_gpu()
    assert check.facts["gpu_step"] is True
    assert check.facts["gpu_step_seconds"] > 0  # how long it takes here says nothing about a card
    assert check.findings == ()
    assert check.facts["kernels_problem"] is None
    assert "own kernels" in check.text


def test_kernels_that_differ_are_reported_and_not_used(broken_kernels):
    check = gpu.check_gpu()
    assert check.facts["gpu_step"] is True  # by torch's operations
    (finding,) = check.findings
    assert (finding.name, finding.severity) == ("GPU kernels", "warning")
    assert "differ" in check.facts["kernels_problem"]
    assert "not installed" in check.facts["gsplat_problem"]


def test_a_gsplat_whose_kernels_were_not_built_is_reported(broken_kernels, monkeypatch):
    module: Any = ModuleType("gsplat")
    kernels: Any = None  # what gsplat has instead of its module of kernels if there is no nvcc

    def isect_tiles(*_, **__):
        return kernels.intersect_tile()

    module.isect_tiles = isect_tiles
    monkeypatch.setitem(sys.modules, "gsplat", module)
    assert "intersect_tile" in gpu.check_gpu().facts["gsplat_problem"]


def test_a_step_that_fails_is_an_error(fake_cuda, monkeypatch):
    def fails(device):
        if device.type == "cuda":
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore")
        return [torch.ones(1)]

    monkeypatch.setitem(gpu._STEPS, "video", fails)
    check = gpu.check_gpu()
    assert check.facts["gpu_step"] is False
    assert "no kernel image" in check.findings[0].message
    assert "more" not in check.findings[0].message


def test_a_step_that_differs_is_an_error(fake_cuda, monkeypatch):
    monkeypatch.setitem(gpu._STEPS, "video", lambda device: [torch.ones(1) + 0.1 * (device.type == "cuda")])
    check = gpu.check_gpu()
    assert [finding.severity for finding in check.findings] == ["error"]


def test_without_a_gpu_nothing_is_tried():
    assert gpu.check_gpu().facts == {"gpu_step": None}
