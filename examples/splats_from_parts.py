"""Train Gaussian splats in a short custom loop: densified, recorded, profiled, guarded and resumable.

The loop does what `fieldwatch train splats` does in its first stage (Kerbl 2023), on the built-in scene.

    python examples/splats_from_parts.py [FOLDER] [STEPS]
"""

import math
import sys

import torch

from fieldwatch import Outputs, Profile, Run, Shuffled, Terms
from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.pipelines.splats import SPLATS_RULES, Gaussians, Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.densification import (
    DensificationSchedule,
    DensificationThresholds,
    densify,
    reference_lengths,
    reset_opacity,
)
from fieldwatch.recon.render import DensificationStatistics, RenderOutput, View, image_similarity, rasterize


def render(gaussians: Gaussians, view: View, step: int) -> RenderOutput:
    parts = (gaussians.means, gaussians.quaternions, gaussians.scales, gaussians.opacities)
    return rasterize(
        *parts, view, spherical_harmonics=gaussians.harmonics, sh_degree=gaussians.degree_at(step, every=500)
    )


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/splats_from_parts"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    torch.manual_seed(0)
    torch.set_num_threads(1)

    photos = solid_photos(views=24, size=96, points=1500)
    names = ("fx", "fy", "cx", "cy", "width", "height")
    views = [
        View(camera_from_world=camera.camera_from_world.float(), **{name: getattr(camera, name) for name in names})
        for camera in photos.cameras
    ]
    images = [photo.image.float() / 255 for photo in photos]

    schedule = DensificationSchedule().scaled(steps / 30_000)
    thresholds = DensificationThresholds(cap=20_000)
    rates = Rates(decay_steps=steps)
    gaussians = Gaussians.from_points(photos.points, photos.colors, degree=3)
    optimizer = make_optimizer(gaussians, rates, photos.extent)
    statistics = DensificationStatistics(len(gaussians))
    order = Shuffled(len(photos.train), 1, seed=0)

    with Run(folder, profile=Profile(interval=50), outputs=Outputs(rules=SPLATS_RULES)) as run:
        run.track(
            gaussians=gaussians,
            optimizer=optimizer,
            statistics=statistics,
            order=order,
            groups=gaussians.groups(),
            data={"images": images},
        )
        run.resume()
        for step in run.steps(steps):
            number = photos.train[int(next(order))]
            rates.apply(optimizer, step.index, photos.extent)
            with step.span("render"):
                output = render(gaussians, views[number], step.index)
            with step.span("loss"):
                similarity = image_similarity(output.features, images[number])
                terms = Terms(l1=(0.8, similarity.l1), dssim=(0.2, 1 - similarity.ssim))
            optimizer.zero_grad()
            with step.span("backward"):
                terms.total.backward()
            step.observe(terms, sample=photos.names[number])
            if schedule.collects_statistics(step.index):
                statistics.add(output, views[number])
            # Only the Gaussians of this view have gradients; the optimizer skips the others.
            optimizer.visible = output.ids
            with step.span("optimizer"):
                step.update(optimizer)
            step.record({"Model/size": len(gaussians), "Model/work": len(output.ids)})

            if schedule.densifies_after(step.index):
                with step.span("densify"):
                    cap = None if run.growth_cap is None else int(run.growth_cap)
                    cameras = [views[i] for i in photos.train]
                    lengths = reference_lengths(gaussians.means.detach(), cameras, photos.extent)
                    record = densify(
                        gaussians, statistics, thresholds, step=step.index, reference_length=lengths, cap=cap
                    )
                run.event("growth", **record.facts(schedule.last_step))
            if schedule.resets_after(step.index):
                run.event("reset", lowered=reset_opacity(gaussians))

        with torch.no_grad():
            errors = [(render(gaussians, views[i], steps).features - images[i]).square().mean() for i in photos.test]
        psnr = -10 * math.log10(float(torch.stack(errors).mean()))
        run.record({"Eval/psnr": psnr})
    print(f"{len(gaussians)} Gaussians, {psnr:.2f} dB on {len(photos.test)} held-out views")
    for finding in run.findings:
        print(finding)


if __name__ == "__main__":
    main()
