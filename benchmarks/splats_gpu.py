"""A whole training step on a GPU compared with gsplat's own loop, and the cost of the instruments there.

    python benchmarks/splats_gpu.py                     # needs a CUDA device and gsplat (pip install 'fieldwatch[gpu]')
    python benchmarks/splats_gpu.py --sizes 200000x800

Both loops train the same Gaussians on the same photos of the built-in scene, with the same rates, the same L1 and SSIM
(fieldwatch's, in torch), harmonics of degree 3, one fused Adam step, and densification statistics but no densification.
gsplat's loop uses its public functions `rasterization` and `DefaultStrategy`, with one fused Adam per parameter as the
strategy requires. Blocks of the three (gsplat, fieldwatch, fieldwatch with the pipeline's run) alternate in one
process. Each block ends with a synchronization, and figures are medians of the blocks' wall times.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fieldwatch.recon.pipelines.splats import Rates
from fieldwatch.recon.render import View, image_similarity
from splats_steps import BLOCK, Steps, recorded

SIZES = ("50000x512", "200000x800", "1000000x1024")
NAMES = {
    "means": "means",
    "scales": "log_scales",
    "quats": "quaternions",
    "opacities": "opacity_logits",
    "sh0": "constant",
    "shN": "rest",
}
"""gsplat's names of the parameters, and fieldwatch's."""
NEVER = 1 << 30


class GsplatLoop:
    """Training with gsplat's public functions, as its documentation shows it.

    Args:
        steps: fieldwatch's steps, whose current Gaussians and photos it uses.
        packed: gsplat's setting; gsplat recommends True for scenes much larger than a photo.
    """

    def __init__(self, steps: Steps, *, packed: bool) -> None:
        import gsplat  # noqa: PLC0415  # pyright: ignore[reportMissingImports]  optional, needs CUDA

        self.gsplat: Any = gsplat
        self.config = steps.config
        self.scene = steps.scene
        self.packed = packed
        self.taken = 0
        rows = {name: getattr(steps.gaussians, own).detach().clone() for name, own in NAMES.items()}
        rows["sh0"] = rows["sh0"][:, None, :]
        self.parameters = nn.ParameterDict({name: nn.Parameter(values) for name, values in rows.items()})
        rates = Rates()
        self.optimizers = {
            name: torch.optim.Adam(
                [{"params": [self.parameters[name]], "name": name}],
                lr=rates.means_at(0, self.scene.extent) if own == "means" else getattr(rates, own),
                eps=1e-15,
                fused=True,
            )
            for name, own in NAMES.items()
        }
        self.strategy: Any = gsplat.DefaultStrategy(refine_start_iter=NEVER, refine_stop_iter=NEVER, reset_every=NEVER)
        self.strategy.check_sanity(self.parameters, self.optimizers)
        self.state = self.strategy.initialize_state(scene_scale=self.scene.extent)

    def take(self) -> None:
        """Run one whole step."""
        self.taken += 1
        view = self.scene.photo_view(self.scene.photos.train[self.taken % len(self.scene.photos.train)])
        image, info = self.draw(view.camera)
        self.strategy.step_pre_backward(self.parameters, self.optimizers, self.state, self.taken, info)
        alike = image_similarity(image, view.image)
        loss = (1 - self.config.dssim) * alike.l1 + self.config.dssim * (1 - alike.ssim)
        loss.backward()
        self.strategy.step_post_backward(
            self.parameters, self.optimizers, self.state, self.taken, info, packed=self.packed
        )
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def draw(self, view: View) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return one image, height x width x 3, and gsplat's information about it."""
        own = self.parameters
        lens = torch.tensor(
            [[view.fx, 0.0, view.cx], [0.0, view.fy, view.cy], [0.0, 0.0, 1.0]], device=own["means"].device
        )
        pictures, _, info = self.gsplat.rasterization(
            means=own["means"],
            quats=own["quats"],
            scales=own["scales"].exp(),
            opacities=own["opacities"].sigmoid(),
            colors=torch.cat([own["sh0"], own["shN"]], 1),
            viewmats=view.camera_from_world[None],
            Ks=lens[None],
            width=view.width,
            height=view.height,
            sh_degree=3,
            packed=self.packed,
        )
        return pictures[0], info


def milliseconds(take: Callable[[], object]) -> float:
    """Return the milliseconds of one step, over a block."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(BLOCK):
        take()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / BLOCK


def measure(count: int, size: int, blocks: int, folder: Path) -> str:
    """Return one row of the table."""
    plain, within = (Steps(count, size, device="cuda") for _ in range(2))
    run = recorded(within, folder, (blocks + 1) * BLOCK + 1)
    takes: dict[str, Callable[[], object]] = {
        "ours": lambda: plain.take(lambda _: nullcontext()),
        "recorded": lambda: next(run),
    }
    for packed in (True, False):
        takes[f"gsplat, packed={packed}"] = GsplatLoop(plain, packed=packed).take
    spent: dict[str, list[float]] = {name: [] for name in takes}
    for block in range(blocks + 1):
        for name, take in takes.items():
            took = milliseconds(take)
            if block:  # the first block of each is a warmup
                spent[name].append(took)
    run.close()
    own, theirs = (statistics.median(spent[name]) for name in ("ours", "recorded"))
    best = min((statistics.median(spent[name]), name) for name in spent if name.startswith("gsplat"))
    more = statistics.median(b / a - 1 for a, b in zip(spent["ours"], spent["recorded"], strict=True))
    return (
        f"| {count:,} @ {size} | {best[0]:.2f} ({best[1]}) | {own:.2f} | {best[0] / own:.2f}x | {theirs:.2f} "
        f"| {more:+.2%} |"
    )


def reason_not_to() -> str:
    """Return why nothing can be measured here; empty if it can."""
    if not torch.cuda.is_available():
        return "not yet run on a GPU: torch finds no CUDA device here; nothing was measured, nothing is recorded"
    if find_spec("gsplat") is None:
        return (
            "gsplat is not installed (pip install 'fieldwatch[gpu]'), so nothing was measured and nothing is recorded"
        )
    return ""


def main() -> None:
    """Print the table, or to standard error why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="GAUSSIANSxPIXELS")
    parser.add_argument("--blocks", type=int, default=9)
    options = parser.parse_args()
    reason = reason_not_to()
    if reason:
        print(reason, file=sys.stderr)
        return
    print(
        f"{torch.cuda.get_device_name()}, milliseconds per step, medians of {options.blocks} blocks of {BLOCK} steps\n"
    )
    print("| Gaussians @ pixels | gsplat's loop | fieldwatch | ratio | with recording | recording adds (goal: < 1 %) |")
    print("|---|---:|---:|---:|---:|---:|")
    for size in options.sizes:
        count, pixels = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as folder:
            print(measure(count, pixels, options.blocks, Path(folder) / "run"), flush=True)


if __name__ == "__main__":
    main()
