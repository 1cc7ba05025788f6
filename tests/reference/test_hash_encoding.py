"""The encoding in torch operations over all levels at once, as on a GPU, against the one that goes level by level."""

import pytest
import torch

from fieldwatch.recon.render import HashEncoding, hash_encode_reference

SETTINGS = {
    "hashed and dense levels": {"levels": 5, "base_resolution": 4, "finest_resolution": 40, "table_bits": 9},
    "dense levels": {"levels": 3, "base_resolution": 2, "finest_resolution": 6, "table_bits": 12},
    "hashed levels": {"levels": 2, "base_resolution": 16, "finest_resolution": 32, "table_bits": 8},
}


def encoded(encoding, encode):
    """Return features and Jacobian, and the gradients of table and points through both."""
    chance = torch.Generator().manual_seed(1)
    points = torch.rand(50, 3, generator=chance, dtype=torch.float64)
    points[:3] = torch.tensor([0.0, 0.5, 1.0])  # on faces of cells
    points.requires_grad_()
    features, jacobian = encode(points)
    upstream = [torch.randn(part.shape, generator=chance, dtype=part.dtype) for part in (features, jacobian)]
    gradients = torch.autograd.grad([features, jacobian], [encoding.table, points], upstream)
    return [features, jacobian, *gradients]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_all_levels_at_once_are_the_reference(settings):
    encoding = HashEncoding(**settings).double()
    torch.nn.init.normal_(encoding.table)
    encoding.activate(settings["levels"] - 0.4)
    weights = encoding.level_weights()
    ours = encoded(encoding, encoding.with_jacobian)  # the kernels do not support double precision
    wanted = encoded(encoding, lambda x: hash_encode_reference(x, encoding.table, encoding.lattices, weights))
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-10)
    points = torch.rand(20, 3, dtype=torch.float64)
    torch.testing.assert_close(encoding(points), encoding.with_jacobian(points)[0], rtol=0, atol=1e-14)
