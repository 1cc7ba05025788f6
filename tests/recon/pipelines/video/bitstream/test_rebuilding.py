from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.pipelines.video.bitstream import (
    CodecOptions,
    StoredFrames,
    frame_codes,
    load_bitstream,
    model_config,
    read_bitstream,
    rebuild,
    write_bitstream,
)
from fieldwatch.recon.pipelines.video.models import ModelOptions, Query, VideoGeometry, build_model

GEOMETRY = VideoGeometry(frames=4, height=32, width=64)
OPTIONS = ModelOptions(fc_dim=8, clip_dim=16, lower_width=8, embed="pe_1.25_8", dec_strds=(4, 2), enc_strds=(4, 2))


def build(name):
    torch.manual_seed(0)
    options = replace(OPTIONS, dec_strds=None, enc_strds=None) if name in ("grid", "dual") else OPTIONS
    return build_model(name, GEOMETRY, options).eval(), model_config(name, GEOMETRY, options, clip="bunny")


def query(frames=None):
    half = torch.full((4,), 0.5, dtype=torch.float64)
    return Query(t=torch.arange(4, dtype=torch.float64) / 4, x=half, y=half, frames=frames)


@pytest.mark.parametrize("name", ["grid", "dual", "hnerv", "nerv"])
@torch.no_grad()
def test_the_file_alone_draws_the_clip(name, tmp_path):
    model, config = build(name)
    frames = torch.rand(4, 3, 32, 64, generator=torch.Generator().manual_seed(1))
    write_bitstream(tmp_path / "m.fwv", model.state_dict(), config, embeddings=frame_codes(model, frames))
    loaded = load_bitstream(tmp_path / "m.fwv")
    assert not loaded.needs_frames
    assert loaded.unit == model.unit
    assert set(loaded.groups()) == set(model.groups())
    expected = model(query(frames))
    drawn = loaded(query())
    torch.testing.assert_close(drawn.rgb, expected.rgb, atol=0.01, rtol=0)
    assert (drawn.embedding * expected.embedding).sum(-1).min() > 0.999
    assert not torch.equal(drawn.rgb, expected.rgb)  # 8 bits are not the float model


@torch.no_grad()
def test_encoder_and_decoder_side_draw_the_same_bits(tmp_path):
    model, config = build("grid")
    write_bitstream(tmp_path / "m.fwv", model.state_dict(), config)
    decoded = read_bitstream(tmp_path / "m.fwv")
    model.load_state_dict(dict(decoded.state))
    assert torch.equal(model(query()).rgb, rebuild(decoded)(query()).rgb)


@torch.no_grad()
def test_stored_frames_know_their_frame_by_time(tmp_path):
    model, config = build("hnerv")
    frames = torch.rand(4, 3, 32, 64, generator=torch.Generator().manual_seed(1))
    write_bitstream(tmp_path / "m.fwv", model.state_dict(), config, embeddings=frame_codes(model, frames))
    loaded = load_bitstream(tmp_path / "m.fwv")
    assert isinstance(loaded, StoredFrames)
    all_four = loaded(query()).rgb
    one = Query(**{axis: getattr(query(), axis)[2:3] for axis in ("t", "x", "y")})
    torch.testing.assert_close(loaded(one).rgb, all_four[2:3])


@torch.no_grad()
def test_pixels_only(tmp_path):
    model, config = build("grid")
    options = CodecOptions(with_clip_head=False)
    write_bitstream(tmp_path / "m.fwv", model.state_dict(), config, options=options)
    assert load_bitstream(tmp_path / "m.fwv")(query(), embed=False).embedding is None


def test_a_file_of_another_model_is_refused(tmp_path):
    model, config = build("nerv")
    state = model.state_dict()
    state["stranger"] = state.pop("rgb_head.bias")
    write_bitstream(tmp_path / "m.fwv", state, config)
    with pytest.raises(ValueError, match=r"missing tensors \['rgb_head.bias'\], unexpected tensors \['stranger'\]"):
        load_bitstream(tmp_path / "m.fwv")


def test_models_without_encoder_have_no_codes():
    assert frame_codes(build("grid")[0], torch.rand(4, 3, 32, 64)) is None
