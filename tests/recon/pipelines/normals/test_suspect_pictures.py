"""The picture of a suspected view: a sheet of its normals and those of its neighbors."""

from fieldwatch import MicroBatches
from fieldwatch.recon.pipelines.normals.evaluate import TILE
from fieldwatch.recon.pipelines.normals.suspect_pictures import record_suspects


def test_the_view_that_a_rule_names_is_pictured_with_two_neighbors(run_with_losses, ball, tmp_path):
    config = ball.config(views=6)
    scene = ball.scene(config, size=32)
    model = ball.model(config, scene)
    micro_batches = MicroBatches("evaluation", most=4)
    names = scene.maps.names
    _, images = run_with_losses(
        tmp_path, names, {names[2]}, lambda run: record_suspects(run, config, scene, model, micro_batches)
    )
    ((tag, (position, image)),) = images.items()
    assert (tag, position) == ("Suspects/view", scene.schedule.total)
    # three strips of three panels
    assert image.width * image.height > 9 * TILE * TILE
