import hashlib

import numpy as np
import pytest

from fieldwatch.recon.pipelines.video.bitstream import entropy


def decaying(size, width, alphabet, seed=0):
    values = np.rint(np.random.default_rng(seed).laplace(alphabet // 2, width, size))
    return np.clip(values, 0, alphabet - 1).astype(np.int64)


def order0_bytes(symbols):
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / symbols.size)).sum()) / 8


def write(symbols, alphabet):
    writer = entropy.SymbolWriter()
    prior = entropy.fit_priors(symbols, alphabet)[0]
    writer.write(symbols, alphabet, prior)
    return writer.payload(), prior


@pytest.mark.parametrize(("width", "alphabet"), [(0.01, 256), (2, 256), (30, 256), (4, 16), (300, 4096), (0.3, 2)])
@pytest.mark.parametrize("size", [1, 127, 5000])
def test_round_trip(size, width, alphabet):
    symbols = decaying(size, width, alphabet)
    payload, prior = write(symbols, alphabet)
    assert (entropy.SymbolReader(payload).read(size, alphabet, prior) == symbols).all()


def test_the_file_is_as_small_as_the_histogram_allows():
    symbols = decaying(100_000, 12, 256)
    assert len(write(symbols, 256)[0]) < 1.002 * order0_bytes(symbols)


def test_symbols_the_prior_does_not_expect_cost_more_but_survive():
    symbols = np.random.default_rng(0).permutation(np.repeat([0, 255], 2000)).astype(np.int64)
    narrow = entropy.fit_priors(np.full(10, 128), 256)[1]
    writer = entropy.SymbolWriter()
    writer.write(symbols, 256, narrow)
    assert (entropy.SymbolReader(writer.payload()).read(4000, 256, narrow) == symbols).all()
    assert order0_bytes(symbols) < len(writer.payload()) < order0_bytes(symbols) + 1000


def test_estimated_and_written_length_agree():
    symbols = decaying(20_000, 5, 256)
    payload, prior = write(symbols, 256)
    assert len(payload) == pytest.approx(entropy.code_length(symbols, 256, prior) / 8, abs=8)


def test_several_tensors_share_one_coder():
    parts = [(decaying(300, 3, 64, seed), 64) for seed in range(3)] + [(decaying(300, 3, 256), 256)]
    writer = entropy.SymbolWriter()
    priors = [entropy.fit_priors(part, alphabet)[1] for part, alphabet in parts]
    sizes = [writer.write(part, alphabet, prior) for (part, alphabet), prior in zip(parts, priors, strict=True)]
    assert sum(sizes) == len(writer.payload())
    reader = entropy.SymbolReader(writer.payload())
    for (part, alphabet), prior in zip(parts, priors, strict=True):
        assert (reader.read(300, alphabet, prior) == part).all()


def test_probabilities_are_exact_multiples_that_sum_to_one():
    counts = entropy._prior_counts(entropy.fit_priors(decaying(100, 3, 256), 256)[0], 256)
    shares = entropy._probabilities(counts) * 2**24
    assert (shares == np.rint(shares)).all()
    assert shares.min() >= 1
    assert shares.sum() == 2**24


def test_prior_counts_are_integers_known_beforehand():
    # half the weight per step: an encoder on any machine must come to these counts
    counts = entropy._prior_counts((2**31, 2**32), 8)
    assert counts.tolist() == [2276, 4552, 9103, 18205, 36409, 18205, 9103, 4552]


def test_bytes_are_the_same_on_every_machine():
    symbols = np.arange(400, dtype=np.int64) ** 2 * 7919 % 61 % 16
    writer = entropy.SymbolWriter()
    writer.write(symbols, 16, (3006477107, 2**32))
    payload = writer.payload()
    assert (len(payload), payload[:8].hex()) == (208, "e2cf12001c6f562f")
    assert hashlib.sha256(payload).hexdigest().startswith("6ed9c30535a83980de1b11cae1aaf018")
