import pytest
import torch

from fieldwatch.recon.pipelines.video.bitstream import CodecOptions, allocate_bits, read_bitstream, write_bitstream

X = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
STATE = {
    "loud.weight": torch.randn(32, 32, generator=torch.Generator().manual_seed(1)),
    "quiet.weight": torch.randn(32, 32, generator=torch.Generator().manual_seed(2)),
    "count": torch.tensor(3),
}


def draw(state):
    return X @ state["loud.weight"] + 0.01 * (X @ state["quiet.weight"])


def error(state):
    return float((draw(state) - draw(STATE)).square().mean())


def test_bits_go_where_they_are_seen():
    bits = allocate_bits(STATE, error, 0.01)
    assert bits.keys() == {"loud.weight", "quiet.weight"}
    assert bits["loud.weight"] >= bits["quiet.weight"] + 2


@pytest.mark.parametrize("budget", [0.3, 0.05, 0.01])
def test_the_budget_is_kept(budget, tmp_path):
    options = CodecOptions(by_prefix=allocate_bits(STATE, error, budget))
    config = {"geometry": {"frames": 1, "height": 8, "width": 8}}
    write_bitstream(tmp_path / "m.fwv", STATE, config, options=options)
    assert 0.02 * budget < error(read_bitstream(tmp_path / "m.fwv").state) < 1.3 * budget


def test_smaller_at_the_error_of_equal_bits(tmp_path):
    config = {"geometry": {"frames": 1, "height": 8, "width": 8}}
    equal = write_bitstream(tmp_path / "m.fwv", STATE, config, options=CodecOptions(bits=6))
    budget = error(read_bitstream(tmp_path / "m.fwv").state)
    options = CodecOptions(by_prefix=allocate_bits(STATE, error, budget))
    assert write_bitstream(tmp_path / "m.fwv", STATE, config, options=options).bytes < 0.85 * equal.bytes


def test_limits_hold():
    assert set(allocate_bits(STATE, error, 1e9, least=5).values()) == {5}
    assert set(allocate_bits(STATE, error, 1e-12, most=7).values()) == {7}


def test_impossible_wishes_are_refused():
    with pytest.raises(ValueError, match=r"got 0\.0 and 2 to 8 bits"):
        allocate_bits(STATE, error, 0.0)
    with pytest.raises(ValueError, match="and 9 to 8 bits"):
        allocate_bits(STATE, error, 1.0, least=9)
