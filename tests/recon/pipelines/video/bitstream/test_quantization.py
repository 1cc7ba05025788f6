import numpy as np
import pytest
import torch

from fieldwatch.recon.pipelines.video.bitstream import quantize
from fieldwatch.recon.pipelines.video.bitstream.quantization import quantize_by_step


def weights(*shape, seed=0, scale=0.05):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("bits", [4, 6, 8, 12])
def test_no_value_is_further_than_half_a_step(bits):
    tensor = weights(16, 8, 3, 3)
    quantized = quantize(tensor, bits)
    error = np.abs(quantized.dequantize() - tensor.numpy())
    assert (error <= 0.5001 * quantized.scale.astype(np.float32)).all()
    assert quantized.symbols.min() >= 0
    assert quantized.symbols.max() < 2**bits


def test_tables_are_rounded_before_the_symbols_are_taken():
    quantized = quantize(weights(64, 64), 8)
    assert quantized.minimum.dtype == quantized.scale.dtype == np.float16
    minimum = quantized.minimum.astype(np.float64)
    scale = quantized.scale.astype(np.float64)
    values = weights(64, 64).numpy()
    assert (minimum <= values).all()
    assert (minimum + 255 * scale >= values - 1e-12).all()


def test_an_axis_of_unlike_slices_gets_its_own_table():
    tensor = weights(8, 600) * torch.logspace(0, -3, 8)[:, None]
    assert quantize(tensor, 8).axis == 0
    assert quantize(tensor, 8).scale.shape == (8, 1)
    whole = quantize(weights(10, 10) * torch.logspace(0, -3, 10)[:, None], 8)
    assert whole.axis is None  # a table per row would be 10 % of the tensor


def test_candidate_with_the_least_error_wins():
    tensor = weights(100, 100) * torch.logspace(0, -2, 100)
    assert quantize(tensor, 6).axis == 1


@pytest.mark.parametrize("tensor", [weights(500) * 1e-6, weights(500) * 1e6, weights(500) + 1000.0])
def test_single_precision_tables_where_half_would_lose(tensor):
    quantized = quantize(tensor, 8)
    assert quantized.minimum.dtype == np.float32
    step = float(quantized.scale.max())
    assert np.abs(quantized.dequantize() - tensor.numpy()).max() <= 0.55 * step
    assert step == pytest.approx(float(tensor.max() - tensor.min()) / 255, rel=1e-3)


def test_a_constant_tensor_keeps_its_value():
    quantized = quantize(torch.full((50,), 0.25), 8)
    assert (quantized.symbols == 0).all()
    assert (quantized.dequantize() == 0.25).all()
    assert (quantized.zero_points() == 0).all()


def test_zero_point_is_the_symbol_of_zero():
    quantized = quantize(torch.linspace(-1, 3, 400), 8)
    value = quantized.minimum.astype(np.float64) + quantized.scale.astype(np.float64) * quantized.zero_points()
    assert abs(value.item()) <= 0.5 * float(quantized.scale.item())


@pytest.mark.parametrize("step", [0.001, 0.02, 10.0])
def test_multiples_of_a_step_take_as_many_bits_as_they_need(step):
    tensor = weights(16, 8, 3, 3)
    quantized = quantize_by_step(tensor, step)
    multiples = (tensor / step).round()
    assert np.abs(quantized.dequantize() - (multiples * step).numpy()).max() < 1e-5
    assert quantized.symbols.min() == 0
    assert quantized.symbols.max() < 2**quantized.bits
    assert (quantized.symbols - quantized.zero_points() == multiples.numpy()).all()


def test_a_step_that_needs_more_bits_than_a_symbol_has_is_refused():
    with pytest.raises(ValueError, match="at most 12"):
        quantize_by_step(weights(64, 64), 1e-5)
