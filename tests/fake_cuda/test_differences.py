"""What differs between trainings on a CPU and on a GPU: every line of the source that asks for the device is listed.

`docs/gpu.md` tells users about the first list ("The same training on both").
"""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "fieldwatch"
PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
BRANCH = re.compile(r'\.is_cuda\b|\.type (?:==|!=) "(?:cuda|cpu)"')

OTHER_TRAINING = {
    "recon/pipelines/splats/rates.py": "updated by torch's fused Adam",
    "recon/losses/ellipsoids.py": "draw other sample points",
    "recon/pipelines/normals/batches.py": "adapt the number of rays",
    "recon/pipelines/normals/device_rendering.py": "adapt the number of rays",
}
"""Files whose branches train with other numbers than rounding explains, and words of the page that say so."""
OTHER_KERNELS = {
    "recon/geometry/rotations.py",
    "recon/losses/surface.py",
    "recon/pipelines/normals/poses.py",
    "recon/pipelines/normals/recovery.py",
    "recon/pipelines/splats/objective.py",
    "recon/pipelines/splats/optimizers.py",
    "recon/pipelines/splats/refined/optimizers.py",
    "recon/pipelines/video/models/blocks.py",
    "recon/render/encoding.py",
    "recon/render/gpu/kernels.py",
    "recon/render/native/kernels.py",
    "recon/render/sdf/compositing.py",
    "recon/render/sdf/compositing_native.py",
    "recon/render/sdf/marching.py",
    "recon/render/sdf/marching_native.py",
    "recon/render/sdf/occupancy.py",
    "recon/render/sdf_field.py",
    "recon/render/splats/rasterization.py",
    "recon/render/triangles.py",
    "recon/render/visible_adam.py",
    "measure/norms.py",
    "measure/terms.py",
    "recon/pipelines/normals/learning.py",
    "recon/pipelines/splats/gaussians.py",
    "recon/render/similarity.py",
    "recon/render/splats/densification_statistics.py",
    "run/step_update.py",
}
"""Files whose branches compute the same formulas by other operations, which round differently."""
SAME_NUMBERS = {
    "checkpoint/array.py",
    "checkpoint/snapshot.py",
    "guard/verdict.py",
    "measure/allocator.py",
    "measure/census/allocator.py",
    "measure/census/ledger.py",
    "measure/fragmentation.py",
    "measure/gauge.py",
    "measure/peaks.py",
    "measure/ring.py",
    "measure/snapshots.py",
    "recon/commands/reconstruct/command.py",
    "recon/commands/view/normals_window.py",
    "recon/commands/view/splats_window.py",
    "recon/pipelines/normals/loss_monitor.py",
    "recon/pipelines/normals/start.py",
    "recon/pipelines/splats/algorithm.py",
    "recon/pipelines/splats/evaluation.py",
    "recon/pipelines/splats/loop_clock.py",
    "recon/pipelines/splats/refined/preparation.py",
    "recon/pipelines/splats/start.py",
    "recon/pipelines/video/graphs.py",
    "recon/pipelines/video/products.py",
    "recon/transfers/copies.py",
    "run/loop_checks/input_samples.py",
    "run/loop_checks/output_gradients.py",
    "run/machine.py",
    "run/memory.py",
    "run/out_of_memory.py",
    "run/ranks.py",
}
"""Files whose branches copy, wait, measure or tell; what is trained does not depend on them."""
SWITCHES = re.compile(r"allow_tf32|set_float32_matmul_precision|cudnn\.benchmark|fp32_precision")
"""Settings of torch that would change how a GPU rounds."""


def files_with(pattern: re.Pattern[str]) -> set[str]:
    paths = SOURCE.rglob("*.py")
    return {path.relative_to(SOURCE).as_posix() for path in paths if pattern.search(path.read_text("utf-8"))}


def test_every_branch_on_the_device_is_listed_once():
    assert files_with(BRANCH) == OTHER_TRAINING.keys() | OTHER_KERNELS | SAME_NUMBERS
    assert len(OTHER_TRAINING) + len(OTHER_KERNELS) + len(SAME_NUMBERS) == len(files_with(BRANCH))


def test_the_page_tells_of_the_other_trainings():
    page = " ".join(PAGE.read_text("utf-8").split())
    told = page[page.index("## The same training on both") : page.index("## How the kernels are checked")]
    for words in OTHER_TRAINING.values():
        assert words in told


def test_precision_is_that_of_torch():
    # Convolutions use TF32 on cards that have it, and products do not, as the page says.
    assert not files_with(SWITCHES)
