"""The tensor profile's tags can be recorded under either of their names by every pipeline."""

import pytest

from fieldwatch.recon.pipelines.normals import NORMALS_METRICS
from fieldwatch.recon.pipelines.splats import SPLATS_METRICS
from fieldwatch.recon.pipelines.video import VIDEO_METRICS
from fieldwatch.record import TOOLKIT, Catalogue
from fieldwatch.record.memory import PROFILE_ROOTS

TAGS = (
    "Tensor_Category/activations_MB",
    "Tensor_DType/float32_MB",
    "Large_Tensors/count",
    "Large_Tensors/total_MB",
    "fragmentation_percent",
)


@pytest.mark.parametrize(
    "metrics", [VIDEO_METRICS, SPLATS_METRICS, NORMALS_METRICS], ids=["video", "splats", "normals"]
)
@pytest.mark.parametrize("root", PROFILE_ROOTS)
def test_both_names_are_declared_beside_the_pipelines_own_metrics(metrics, root):
    catalogue = Catalogue((*TOOLKIT, *metrics))
    for tag in TAGS:
        own = catalogue.require(f"{root}/{tag}")
        assert own.name.startswith(f"{root}/")
