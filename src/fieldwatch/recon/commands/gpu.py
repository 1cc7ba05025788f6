"""What the doctor says about the GPU: whether a step of each kind of training works on it."""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fieldwatch.cli.kit import DataFinding, MachineCheck
from fieldwatch.recon.render import HashEncoding, HashSdf, View, rasterize
from fieldwatch.recon.render.splats import gsplat_problem, splat_kernels_problem

_SIZE = 32
_CLOSE = 5e-3
"""Largest difference of a value and of a gradient, relative to the largest one, between CPU and GPU.

gsplat stops a pixel at another transmittance than our kernels, which changes colors a little."""


def check_gpu() -> MachineCheck:
    """Compare a step of each kind of training on the GPU with the CPU: values, gradients, an update."""
    if not torch.cuda.is_available():
        return MachineCheck(facts={"gpu_step": None}, label="GPU step", text="not tried: torch uses no GPU")
    began = time.perf_counter()
    findings = [problem for name, step in _STEPS.items() if (problem := _compared(name, step)) is not None]
    ours = splat_kernels_problem()
    slow = None if ours is None else gsplat_problem()
    if ours is not None:
        other = "gsplat renders splats" if slow is None else f"torch's own operations render splats, slowly ({slow})"
        message = f"our own GPU kernels do not work: {ours}; {other}"
        report = "report it with the output of `fieldwatch doctor --json`"
        remedy = f"{report}; until then, pip install 'fieldwatch[gpu]', with nvcc of torch's CUDA version"
        findings.append(DataFinding(name="GPU kernels", severity="warning", message=message, remedy=remedy))
    seconds = time.perf_counter() - began
    works = not any(finding.severity == "error" for finding in findings)
    facts = {"gpu_step": works, "gpu_step_seconds": round(seconds, 3), "kernels_problem": ours, "gsplat_problem": slow}
    renderer = "our own kernels" if ours is None else "gsplat" if slow is None else "torch"
    text = f"equal to the CPU's, {seconds:.1f} s; splats by {renderer}" if works else "fails"
    return MachineCheck(facts=facts, label="GPU step", text=text, findings=tuple(findings))


def _compared(name: str, step: Callable[[torch.device], list[Tensor]]) -> DataFinding | None:
    wanted = step(torch.device("cpu"))
    try:
        found = [values.cpu() for values in step(torch.device("cuda"))]
    # Errors of CUDA, of its libraries and of tensors on two devices.
    except RuntimeError as error:
        message = f"a step of {name} fails on the GPU: {str(error).strip().splitlines()[0]}"
        remedy = "train with --device cpu, and compare the driver with torch's CUDA version above"
        return DataFinding(name="GPU step", severity="error", message=message, remedy=remedy)
    # A gradient that is 0 everywhere has no scale of its own.
    gaps = [float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) for a, b in zip(found, wanted, strict=True)]
    if all(gap <= _CLOSE for gap in gaps):
        return None
    message = f"a step of {name} differs between GPU and CPU by {max(gaps):.1%}"
    remedy = "train with --device cpu, and report it with the output of `fieldwatch doctor --json`"
    return DataFinding(name="GPU step", severity="error", message=message, remedy=remedy)


def _splats(device: torch.device) -> list[Tensor]:
    chance = torch.Generator().manual_seed(0)
    means = torch.cat([torch.randn(200, 2, generator=chance), 3 + torch.rand(200, 1, generator=chance)], -1)
    shape = [means, torch.randn(200, 4, generator=chance), torch.full((200, 3), 0.1), torch.full((200,), 0.5)]
    colors = torch.rand(200, 3, generator=chance)
    leaves = [part.to(device).requires_grad_() for part in (*shape, colors)]
    view = View(
        camera_from_world=torch.eye(4, device=device), fx=32.0, fy=32.0, cx=16.0, cy=16.0, width=_SIZE, height=_SIZE
    )
    optimizer = torch.optim.Adam(leaves, lr=1e-3, fused=True)
    means, quaternions, scales, opacities, features = leaves
    image = rasterize(means, quaternions, scales, opacities, view, features=features).features
    (image - 0.5).square().mean().backward()
    gradients = [leaf.grad.clone() for leaf in (means, features) if leaf.grad is not None]
    optimizer.step()
    return [image.detach(), *gradients, features.detach()]


def _normals(device: torch.device) -> list[Tensor]:
    chance = torch.Generator().manual_seed(0)
    encoding = HashEncoding(levels=4, base_resolution=4, finest_resolution=32, table_bits=10, generator=chance)
    points = (2 * torch.rand(500, 3, generator=chance) - 1).to(device)
    field = HashSdf(encoding=encoding, generator=chance).to(device)
    distance, gradient = field.with_gradient(points)
    (distance.square().mean() + (gradient.norm(dim=-1) - 1).square().mean()).backward()
    table = field.encoding.table
    return [distance.detach(), gradient.detach(), *([] if table.grad is None else [table.grad])]


def _video(device: torch.device) -> list[Tensor]:
    chance = torch.Generator().manual_seed(0)
    frame = torch.rand(1, 8, _SIZE, _SIZE, generator=chance).to(device)
    kernel = (torch.rand(8, 8, 3, 3, generator=chance) - 0.5).to(device).requires_grad_()
    output = functional.gelu(functional.conv2d(frame, kernel, padding=1))
    output.square().mean().backward()
    return [output.detach(), *([] if kernel.grad is None else [kernel.grad])]


_STEPS = {"splats": _splats, "normals": _normals, "video": _video}
