"""Codebooks of numbers and palettes of vectors, as SOG stores them."""

import numpy as np

from fieldwatch.recon.data.gaussians.codebook import codebook_of, nearest_codes, palette_of


def test_few_different_numbers_are_exact():
    values = np.array([3.5, -1.0, 3.5, 0.25], np.float32)
    book = codebook_of(values, 8)
    assert len(book) == 8
    assert np.array_equal(book[nearest_codes(values, book)], values)


def test_a_codebook_is_better_than_equal_steps_and_keeps_rare_values():
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.normal(size=20_000), [9.0, -7.0]]).astype(np.float32)
    book = codebook_of(values, 256)
    assert np.all(np.diff(book) >= 0)
    errors = np.abs(book[nearest_codes(values, book)] - values)
    # 256 equal steps over the range of 16 are 0.0625 wide: an error of 0.018 in the square mean.
    assert np.sqrt(np.mean(errors**2)) < 0.6 * 0.018
    assert errors.max() < 0.0625


def test_a_palette_of_all_rows_is_exact():
    rows = np.random.default_rng(0).normal(size=(50, 9)).astype(np.float32)[np.arange(200) % 50]
    entries, indices = palette_of(rows, 300)
    assert len(entries) == 50
    assert np.array_equal(entries[indices], rows)


def test_a_palette_of_as_many_groups_as_entries_finds_the_groups():
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(64, 9))
    rows = (centers[generator.integers(0, 64, 3000)] + 1e-3 * generator.normal(size=(3000, 9))).astype(np.float32)
    entries, indices = palette_of(rows, 128)
    assert entries.shape == (128, 9)
    assert np.abs(entries[indices] - rows).max() < 0.01


def test_equal_rows_are_one_entry():
    entries, indices = palette_of(np.ones((100, 9), np.float32), 10)
    assert (entries.shape, set(indices)) == ((1, 9), {0})
