import json
import struct

import numpy as np
import pytest
import torch

from fieldwatch.recon.pipelines.video.bitstream import (
    BitstreamError,
    CodecOptions,
    breakdown,
    compare_compressors,
    quantize,
    read_bitstream,
    write_bitstream,
)

CONFIG = {"name": "grid", "geometry": {"frames": 4, "height": 32, "width": 64}, "clip": "bunny"}


def state(seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(32, 16, 3, 3, generator=generator) * 0.05
    return {
        "encoder.weight": torch.randn(8, 8, generator=generator),
        "decoder.weight": weight,
        "decoder.bias": torch.randn(32, generator=generator) * 0.01,
        "decoder.gain": torch.tensor(1.75),
        "decoder.steps": torch.tensor(7),
        "decoder.mask": torch.tensor([True, False, True]),
        "decoder.empty": torch.zeros(0, 3),
        "rgb_head.weight": torch.randn(3, 32, generator=generator).half(),
        "clip_head.weight": torch.randn(64, 32, generator=generator).double(),
    }


def codes(frames=4):
    start = torch.randn(1, 16, 8, 16, generator=torch.Generator().manual_seed(1))
    drift = torch.randn(frames, 16, 8, 16, generator=torch.Generator().manual_seed(2)) * 0.05
    return start + drift.cumsum(0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "products" / "bunny.fwv"


def test_weights_are_bit_equal_on_both_sides(path):
    write_bitstream(path, state(), CONFIG)
    decoded = read_bitstream(path)
    assert decoded.config == CONFIG
    assert decoded.state.keys() == state().keys()
    for name, tensor in state().items():
        assert decoded.state[name].dtype == tensor.dtype
        assert decoded.state[name].shape == tensor.shape
    for name in ("decoder.weight", "decoder.bias"):
        assert torch.equal(decoded.state[name], torch.from_numpy(quantize(state()[name], 8).dequantize()))


def test_what_is_no_weight_is_stored_as_it_is(path):
    write_bitstream(path, state(), CONFIG)
    for name in ("decoder.gain", "decoder.steps", "decoder.mask", "decoder.empty"):
        assert torch.equal(read_bitstream(path).state[name], state()[name])


def test_every_byte_is_accounted_for(path):
    written = write_bitstream(path, state(), CONFIG, embeddings=codes())
    assert written.bytes == path.stat().st_size == sum(written.breakdown.values())
    assert written.breakdown == breakdown(path) == read_bitstream(path).breakdown
    assert written.bpp == 8 * written.bytes / (4 * 32 * 64)
    assert {"header", "tables", "checksum", "payload/decoder.weight", "payload/embeddings"} <= written.breakdown.keys()


def test_embeddings_replace_the_encoder(path):
    write_bitstream(path, state(), CONFIG, embeddings=codes(), options=CodecOptions(embedding_bits=6))
    decoded = read_bitstream(path)
    assert "encoder.weight" not in decoded.state
    assert torch.equal(decoded.embeddings, torch.from_numpy(quantize(codes(), 6).dequantize()))
    write_bitstream(path, state(), CONFIG)
    assert read_bitstream(path).embeddings is None
    assert "encoder.weight" in read_bitstream(path).state


def test_prediction_along_time_is_found_and_pays(path):
    slow = write_bitstream(path, {}, CONFIG, embeddings=codes())
    shuffled = codes().flatten()[torch.randperm(codes().numel(), generator=torch.Generator().manual_seed(0))]
    fast = write_bitstream(path, {}, CONFIG, embeddings=shuffled.view_as(codes()))
    assert slow.bytes < 0.8 * fast.bytes


def test_clip_head_can_stay_out(path):
    whole = write_bitstream(path, state(), CONFIG)
    pixels = write_bitstream(path, state(), CONFIG, options=CodecOptions(with_clip_head=False))
    assert pixels.bytes < whole.bytes
    assert "clip_head.weight" not in read_bitstream(path).state
    assert not read_bitstream(path).with_clip_head


def test_bits_per_prefix(path):
    options = CodecOptions(bits=8, by_prefix={"decoder.": 6, "decoder.bias": 10})
    assert [options.of(name) for name in ("decoder.weight", "decoder.bias", "rgb_head.weight")] == [6, 10, 8]
    coarse = write_bitstream(path, state(), CONFIG, options=options)
    assert torch.equal(
        read_bitstream(path).state["decoder.weight"],
        torch.from_numpy(quantize(state()["decoder.weight"], 6).dequantize()),
    )
    assert coarse.bytes < write_bitstream(path, state(), CONFIG).bytes


def test_the_same_model_gives_the_same_file(path, tmp_path):
    write_bitstream(path, state(), CONFIG)
    write_bitstream(tmp_path / "again.fwv", state(), CONFIG)
    assert path.read_bytes() == (tmp_path / "again.fwv").read_bytes()


def test_a_file_is_replaced_whole_and_leaves_no_draft(path):
    write_bitstream(path, state(), CONFIG)
    write_bitstream(path, state(1), CONFIG)
    assert [entry.name for entry in path.parent.iterdir()] == ["bunny.fwv"]


@pytest.mark.parametrize("place", [40, 400, -40, -1])
def test_a_flipped_bit_is_found(path, place):
    write_bitstream(path, state(), CONFIG)
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    with pytest.raises(BitstreamError, match=r"bunny\.fwv.*checksum"):
        read_bitstream(path)


@pytest.mark.parametrize("kept", [0, 4, 20, 200, -1])
def test_a_truncated_file_is_found(path, kept):
    write_bitstream(path, state(), CONFIG)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(BitstreamError, match=r"is truncated: .* bytes|it starts with b'"):
        read_bitstream(path)


def test_a_longer_file_is_found(path):
    write_bitstream(path, state(), CONFIG)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BitstreamError, match=r"bunny\.fwv is too long: .* \d+ bytes"):
        read_bitstream(path)


def test_another_file_and_another_layout_are_refused(path):
    write_bitstream(path, state(), CONFIG)
    content = path.read_bytes()
    path.write_bytes(content[:8] + struct.pack("<H", 99) + content[10:])
    with pytest.raises(BitstreamError, match=r"layout 1, got 99"):
        read_bitstream(path)
    path.write_bytes(b"\x89PNG" + content)
    with pytest.raises(BitstreamError, match=r"b'\\x89PNG"):
        read_bitstream(path)


def test_values_that_are_not_finite_are_refused(path):
    broken = state()
    broken["decoder.weight"][0, 0, 0, :2] = torch.tensor([float("nan"), float("inf")])
    with pytest.raises(ValueError, match=r"decoder\.weight must be finite .* got 2 of 4608 values"):
        write_bitstream(path, broken, CONFIG)
    assert not path.exists()


def test_config_without_geometry_is_refused(path):
    with pytest.raises(ValueError, match=r"got the keys \['name'\]"):
        write_bitstream(path, state(), {"name": "grid"})


def test_impossible_bits_are_refused():
    with pytest.raises(ValueError, match=r"embedding_bits must be 1 to 12 .* got 13"):
        CodecOptions(embedding_bits=13)
    with pytest.raises(ValueError, match=r"by_prefix\['decoder.'\] .* got 0"):
        CodecOptions(by_prefix={"decoder.": 0})


def test_smaller_than_the_general_compressors():
    sizes = compare_compressors({name: t for name, t in state().items() if name.endswith("weight")}, CodecOptions())
    assert sizes.range_coder < min(sizes.deflate, sizes.lzma, sizes.plain)
    assert sizes.range_coder < 1.1 * sizes.order0


def test_config_survives_as_json(path):
    nested = CONFIG | {"options": {"strides": [5, 4, 2], "ratio": 1.2, "none": None}}
    write_bitstream(path, {"decoder.weight": torch.from_numpy(np.eye(4, dtype=np.float32))}, nested)
    assert json.dumps(read_bitstream(path).config) == json.dumps(nested)
