import pytest
import torch

from fieldwatch.recon.pipelines.video.models import ModelOptions, Query, VideoGeometry, build_model
from fieldwatch.recon.pipelines.video.models.encoding import PositionalEncoding

KITCHEN = VideoGeometry(frames=192, height=640, width=1280)
BUNNY = VideoGeometry(frames=32, height=320, width=640)
FULL = (5, 3, 2, 2, 2)


def parameters(geometry, **knobs):
    with torch.device("meta"):
        model = build_model("dual", geometry, ModelOptions(**knobs))
    return sum(p.numel() for p in model.parameters())


def patches(count):
    torch.manual_seed(0)
    t, x, y = torch.rand(3, count, dtype=torch.float64)
    return Query(t=t, x=x, y=y)


@pytest.mark.parametrize(
    ("millions", "knobs"),
    [
        (8.21, {"fc_dim": 96, "dec_strds": (5, 2, 2), "reduce": 1.5, "lower_width": 12}),
        (5.14, {"fc_dim": 64, "dec_strds": (5, 2, 2), "reduce": 1.5, "lower_width": 12}),
        (23.19, {"fc_dim": 192, "dec_strds": FULL, "reduce": 1.2, "lower_width": 32}),
        (35.26, {"fc_dim": 256}),
        (70.79, {"fc_dim": 384, "dec_strds": (*FULL, 2), "reduce": 1.15, "lower_width": 48}),
        (6.90, {"fc_dim": 128, "fc_hw": "5_8", "dec_strds": FULL}),
        (105.59, {}),
        (13.05, {"fc_dim": 128, "dec_strds": (5, 3, 2)}),
    ],
)
def test_literal_models_count_the_parameters_of_the_shipped_scripts(millions, knobs):
    assert round(parameters(KITCHEN, literal=True, **knobs) / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("millions", "geometry", "knobs"),
    [
        (1.73, KITCHEN, {"fc_dim": 64, "dec_strds": (5, 4, 2, 2)}),
        (2.73, KITCHEN, {"fc_dim": 96, "dec_strds": (5, 4, 4), "reduce": 1.5}),
        (4.81, KITCHEN, {"fc_dim": 96, "dec_strds": (5, 4, 2), "fc_hw": "8_8", "reduce": 1.5}),
        (0.56, BUNNY, {"fc_dim": 32}),
        (1.06, BUNNY, {"fc_dim": 48}),
        (1.69, BUNNY, {"fc_dim": 64}),
        (1.12, BUNNY, {"fc_dim": 64, "ks": "0_1_5"}),
        (0.73, BUNNY, {"fc_dim": 64, "ks": "0_1_5", "embed": "pe_1.25_16"}),
    ],
)
def test_exact_models_count_the_parameters_worked_out_for_them(millions, geometry, knobs):
    assert round(parameters(geometry, lower_width=12, **knobs) / 1e6, 2) == millions


def test_checkpoint_names_are_those_of_the_original():
    names = set(build_model("dual", BUNNY, ModelOptions(fc_dim=4, lower_width=2)).state_dict())
    layers = ["decoder.0.conv.downconv", *(f"decoder.{i}.conv.upconv.0" for i in (1, 2, 3))]
    layers += ["rgb_head", "clip_head.2", "clip_head.4"]
    assert names == {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}


@pytest.mark.parametrize("blocks", ["pshuffel", "conv", "interpolate"])
def test_every_upsampler_draws_the_patch_itself(blocks):
    options = ModelOptions(fc_dim=4, lower_width=2, conv_type=("convnext", blocks), num_blks="1_2")
    model = build_model("dual", BUNNY, options)
    sizes = []
    model.rgb_head.register_forward_hook(lambda _module, _given, out: sizes.append(tuple(out.shape)))
    assert model(patches(2)).rgb.shape == (2, 3, 160, 160)
    assert sizes == [(2, 3, 160, 160)]


def test_literal_model_is_resampled_to_the_patch():
    options = ModelOptions(fc_dim=4, lower_width=2, literal=True, dec_strds=(5, 2, 2))
    model = build_model("dual", BUNNY, options)
    sizes = []
    model.rgb_head.register_forward_hook(lambda _module, _given, out: sizes.append(tuple(out.shape)))
    prediction = model(patches(2))
    assert sizes == [(2, 3, 180, 320)]
    assert prediction.rgb.shape == (2, 3, 160, 160)
    assert prediction.embedding.shape == (2, 1, 512)


def test_first_map_of_the_stem_is_channel_major():
    model = build_model("dual", BUNNY, ModelOptions(fc_dim=3, lower_width=2, act="relu"))
    stem = model.decoder[0]
    with torch.no_grad():
        stem.conv["downconv"].weight.zero_()
        stem.conv["downconv"].bias.copy_(torch.arange(48.0))
    assert torch.equal(stem(torch.zeros(1, 480, 1, 1))[0], torch.arange(48.0).reshape(3, 4, 4))


def test_code_is_sines_then_cosines_per_coordinate():
    code = PositionalEncoding.parse("pe_2_3")(torch.tensor([[0.5, 0.0]], dtype=torch.float64))
    expected = [[1, 0, 0, 0, -1, 1, 0, 0, 0, 1, 1, 1]]
    torch.testing.assert_close(code, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_top_frequency_keeps_its_phase():
    value = torch.tensor([[0.625]], dtype=torch.float64)
    levels = PositionalEncoding.parse("pe_1.25_80")(value)[0, 79]
    # pi * 1.25^79 * 0.625 reduced modulo 2 pi in exact integer arithmetic: 1.25^79 = 5^79 / 4^79
    numerator = 5 * 5**79
    denominator = 8 * 4**79
    remainder = (numerator % (2 * denominator)) / denominator
    assert abs(levels.item() - torch.sin(torch.tensor(remainder * torch.pi, dtype=torch.float64)).item()) < 1e-6


def test_width_follows_modelsize():
    small, large = (parameters(BUNNY, modelsize=size, ks="0_1_5", lower_width=12) for size in (0.5, 1.5))
    assert 0.45e6 < small < 0.6e6
    assert 1.4e6 < large < 1.65e6


@pytest.mark.parametrize(
    ("geometry", "knobs", "hint"),
    [
        (BUNNY, {"dec_strds": (3, 3)}, "choose strides that divide both sides"),
        (BUNNY, {"fc_hw": "9_16"}, "leave fc_hw open"),
        (BUNNY, {"fc_hw": "9_16", "dec_strds": (5, 2, 2)}, "renders 180 x 320 pixels, expected 160 x 160"),
        (VideoGeometry(frames=2, height=202, width=404), {}, "no common stride"),
        (BUNNY, {"modelsize": 1e-4}, "raise modelsize"),
    ],
)
def test_impossible_geometry_says_what_to_change(geometry, knobs, hint):
    with pytest.raises(ValueError, match=hint):
        build_model("dual", geometry, ModelOptions(**knobs))
