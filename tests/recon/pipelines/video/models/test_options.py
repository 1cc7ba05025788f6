import pytest

from fieldwatch.recon.pipelines.video.models import ModelOptions, VideoGeometry


@pytest.mark.parametrize(
    ("knobs", "hint"),
    [
        ({"embed": "base_1.25_80"}, "embed is 'base_1.25_80', wanted pe_<base>_<levels>"),
        ({"embed": "pe_1.25_0"}, "embed is"),
        ({"ks": "0_3"}, "ks is '0_3'"),
        ({"ks": "0_2_4"}, "odd kernels"),
        ({"fc_hw": "9x16"}, "wanted <height>_<width>"),
        ({"fc_hw": "0_16"}, "fc_hw is"),
        ({"num_blks": "1"}, "num_blks is"),
        ({"enc_dim": "64"}, "enc_dim is"),
        ({"out_bias": "relu"}, "tanh, sigmoid or a number"),
        ({"fc_dim": 0}, "fc_dim is 0, it must be at least 1"),
        ({"lower_width": 0}, "lower_width is 0"),
        ({"clip_dim": 0}, "clip_dim is 0"),
        ({"dec_strds": (5, 0)}, "every stride"),
        ({"enc_strds": (-1,)}, "every stride"),
        ({"modelsize": 0.0}, "modelsize is 0.0"),
        ({"modelsize": float("nan")}, "modelsize is nan"),
        ({"modelsize": 1.0, "fc_dim": 64}, "give one"),
        ({"reduce": 0.5}, "reduce is 0.5"),
        ({"conv_type": ("convnext", "pshuffle")}, "choose one of pshuffel"),
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
    with pytest.raises(ValueError, match=r"at least 1|ask for fewer"):
        VideoGeometry(**{"frames": 2, "height": 320, "width": 640, **size})


def test_remainder_pixels_belong_to_no_patch():
    geometry = VideoGeometry(frames=1, height=101, width=83)
    assert (geometry.patch_height, geometry.patch_width) == (50, 20)
