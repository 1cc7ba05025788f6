import pytest
import torch

from fieldwatch.recon.pipelines.video.models import ModelOptions, Query, VideoGeometry, build_model
from fieldwatch.recon.pipelines.video.models.encoder import Encoder, embedding_channels

BUNNY = VideoGeometry(frames=132, height=640, width=1280)
SMALL = VideoGeometry(frames=32, height=320, width=640)
PAPER = {"ks": "0_1_5", "lower_width": 12}


def built(name, geometry, **knobs):
    with torch.device("meta"):
        return build_model(name, geometry, ModelOptions(**knobs))


def first_width(model):
    return model.decoder[1].conv["upconv"][0].weight.shape[1]


@pytest.mark.parametrize(
    ("modelsize", "width", "total"), [(0.35, 32, 0.329), (0.75, 48, 0.736), (1.5, 68, 1.504), (3.0, 97, 3.028)]
)
def test_hnerv_width_on_bunny_is_the_released_solvers(modelsize, width, total):
    model = built("hnerv", BUNNY, modelsize=modelsize, enc_strds=(5, 4, 4, 2, 2), **PAPER)
    embeddings = 16 * 2 * 4 * 132
    assert first_width(model) == width
    assert round((sum(p.numel() for p in model.decoder.parameters()) + embeddings) / 1e6, 3) == total


def test_hnerv_stage_widths_on_bunny():
    model = built("hnerv", BUNNY, modelsize=1.5, enc_strds=(5, 4, 4, 2, 2), **PAPER)
    widths = [block.conv["upconv"][0].weight.shape[1] for block in model.decoder[1:]]
    assert [*widths, model.rgb_head.weight.shape[1]] == [68, 57, 48, 40, 33, 28]


@pytest.mark.parametrize(("modelsize", "width"), [(0.1, 17), (0.2, 25), (0.35, 34), (0.75, 50)])
def test_hnerv_width_on_the_reduced_video(modelsize, width):
    assert first_width(built("hnerv", SMALL, modelsize=modelsize, **PAPER)) == width


def test_strides_of_the_reduced_video_are_derived():
    model = built("hnerv", SMALL, modelsize=0.35, **PAPER)
    assert [block.stride for block in model.decoder[1:]] == [5, 4, 4, 2]


def test_encoder_has_the_paper_sizes():
    encoder = Encoder((5, 4, 4, 2, 2), width=64, embedding=16, blocks=1)
    assert sum(p.numel() for p in encoder.parameters()) == 306_160
    assert encoder(torch.rand(1, 3, 320, 640)).shape == (1, 16, 1, 2)


def test_embedding_share_of_the_model_size():
    assert embedding_channels("64_0.1", 0.35, cells=256) == (64, 136)
    assert embedding_channels("64_16", None, cells=256) == (64, 16)
    with pytest.raises(ValueError, match="give modelsize too"):
        embedding_channels("64_0.1", None, cells=256)


def test_hnerv_asks_for_its_frames():
    model = build_model("hnerv", VideoGeometry(frames=2, height=32, width=64), ModelOptions(fc_dim=4, lower_width=2))
    middle = torch.full((1,), 0.5, dtype=torch.float64)
    with pytest.raises(ValueError, match="frames="):
        model(Query(t=middle, x=middle, y=middle))


@pytest.mark.parametrize(
    ("knobs", "hint"),
    [({"enc_strds": (5, 3)}, "must divide both sides"), ({"dec_strds": (5, 4), "enc_strds": (4, 4)}, "the encoder's")],
)
def test_hnerv_strides_that_do_not_meet_are_refused(knobs, hint):
    with pytest.raises(ValueError, match=hint):
        build_model("hnerv", SMALL, ModelOptions(fc_dim=4, **knobs))


def test_hnerv_stem_spreads_an_embedding_over_its_block():
    options = ModelOptions(fc_dim=4, lower_width=2, enc_strds=(4, 4), dec_strds=(4, 2))
    model = build_model("hnerv", VideoGeometry(frames=2, height=32, width=64), options)
    middle = torch.full((1,), 0.5, dtype=torch.float64)
    assert model.decoder[0](torch.rand(1, 16, 2, 4)).shape == (1, 4, 4, 8)
    assert model(Query(t=middle, x=middle, y=middle, frames=torch.rand(1, 3, 32, 64))).rgb.shape == (1, 3, 32, 64)


def test_nerv_reads_time_only():
    model = build_model("nerv", VideoGeometry(frames=4, height=64, width=128), ModelOptions(fc_dim=8, lower_width=4))
    t = torch.tensor([0.0, 0.25, 0.25], dtype=torch.float64)
    rgb = model(Query(t=t, x=t, y=1 - t)).rgb
    assert rgb.shape == (3, 3, 64, 128)
    assert torch.equal(rgb[1], rgb[2])
    assert not torch.equal(rgb[0], rgb[1])
