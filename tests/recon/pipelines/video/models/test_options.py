import pytest

from fieldwatch.recon.pipelines.video.models import ModelOptions, VideoGeometry


@pytest.mark.parametrize(
    ("knobs", "hint"),
    [
        ({"embed": "base_1.25_80"}, "embed must be pe_<base>_<levels>.* got 'base_1.25_80'"),
        ({"embed": "pe_1.25_0"}, "embed must be"),
        ({"ks": "0_3"}, "ks must be .* got '0_3'"),
        ({"ks": "0_2_4"}, "odd kernels"),
        ({"fc_hw": "9x16"}, "must be <height>_<width>"),
        ({"fc_hw": "0_16"}, "fc_hw must be"),
        ({"num_blks": "1"}, "num_blks must be"),
        ({"enc_dim": "64"}, "enc_dim must be"),
        ({"out_bias": "relu"}, "tanh, sigmoid or a number"),
        ({"fc_dim": 0}, "fc_dim must be at least 1, got 0"),
        ({"lower_width": 0}, "lower_width must be at least 1, got 0"),
        ({"clip_dim": 0}, "clip_dim must be at least 1, got 0"),
        ({"dec_strds": (5, 0)}, "every stride"),
        ({"enc_strds": (-1,)}, "every stride"),
        ({"modelsize": 0.0}, "modelsize must be .* got 0.0"),
        ({"modelsize": float("nan")}, "modelsize must be .* got nan"),
        ({"modelsize": 1.0, "fc_dim": 64}, "give only one"),
        ({"reduce": 0.5}, "reduce must be .* got 0.5"),
        ({"conv_type": ("convnext", "pshuffle")}, "must be one of pshuffel"),
        ({"conv_type": ("resnet", "conv")}, "encoder entry"),
    ],
)
def test_options_out_of_bounds_say_what_was_wanted(knobs, hint):
    with pytest.raises(ValueError, match=hint):
        ModelOptions(**knobs)


def test_notations_are_read():
    options = ModelOptions(ks="0_1_5", num_blks="2_3")
    assert options.kernels == (1, 5)
    assert options.blocks == (2, 3)


@pytest.mark.parametrize("size", [{"frames": 0}, {"height": 0}, {"columns": 0}, {"rows": 321}])
def test_geometry_without_patches_is_refused(size):
    with pytest.raises(ValueError, match=r"at least 1|use fewer"):
        VideoGeometry(**{"frames": 2, "height": 320, "width": 640, **size})


def test_remainder_pixels_belong_to_no_patch():
    geometry = VideoGeometry(frames=1, height=101, width=83)
    assert (geometry.patch_height, geometry.patch_width) == (50, 20)
