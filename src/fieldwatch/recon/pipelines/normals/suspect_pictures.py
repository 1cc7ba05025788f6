"""Pictures of the views that the health rules suspect, each above its neighbors."""

from collections.abc import Sequence
from functools import partial

from fieldwatch import MicroBatches, Run, read_history
from fieldwatch.recon.geometry import similar_cameras
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.evaluate import TILE, compare_views
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.pictures import Picture, sheet_of, strip_of
from fieldwatch.recon.pipelines.normals.rules import WrongView
from fieldwatch.recon.pipelines.normals.scene import NormalsScene

TAG = "Suspects/view"
NEIGHBORS = 2
"""Number of neighbors below the view: with one, the neighbor could be the wrong one."""
RADIUS = 1.0
"""Radius of the sphere that contains the object, in the frame of the cameras."""


def record_suspects(
    run: Run, config: NormalsConfig, scene: NormalsScene, model: NormalsModel, micro_batches: MicroBatches
) -> None:
    """Log a picture of the view that a rule names first as wrong, above the views of the nearest cameras.

    Call it after the last step. The run itself asks the rules only when it ends, which is too late for a picture.
    """
    run.flush()
    for finding in WrongView()(read_history(run.folder)):
        index = scene.maps.names.index(finding.subject)
        views = [index, *similar_cameras(scene.maps.cameras, index, scene.train, count=NEIGHBORS, size=RADIUS)]
        draw = partial(suspect_picture, run, config, scene, model, micro_batches, views)
        run.image(TAG, run.retry(draw, micro_batches), scene.schedule.total)


def suspect_picture(  # noqa: PLR0913, PLR0917  model, scene, settings, which views, and how they are rendered
    run: Run,
    config: NormalsConfig,
    scene: NormalsScene,
    model: NormalsModel,
    micro_batches: MicroBatches,
    views: Sequence[int],
) -> Picture:
    """Return observed normals, rendered normals and their angle for each view, in the given order."""
    compared = compare_views(
        model,
        scene,
        config,
        views,
        step=scene.schedule.march_step(scene.schedule.total),
        stop_point=partial(run.stop_point, "pictures of suspected views"),
        micro_batches=micro_batches,
    )
    strips = {comparison.number: strip_of(comparison, TILE) for comparison in compared}
    return sheet_of([strips[view] for view in views])
