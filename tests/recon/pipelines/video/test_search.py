import pytest
import torch
from PIL import Image
from torch.nn import functional

from fieldwatch.recon.pipelines.video.search import PatchIndex, search_sheet, spearman

SPLITS = ("train", "train", "val", "unused")


def targets():
    return torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(0))


def index(predicted=None):
    return PatchIndex(
        predicted=targets() if predicted is None else predicted, targets=targets(), splits=SPLITS, columns=4
    )


def test_a_patch_finds_itself_first():
    hit = index().search(targets()[2, 5] * 3, top_k=3)[0]
    assert (hit.rank, hit.frame, hit.patch, hit.row, hit.column, hit.split) == (1, 2, 5, 1, 1, "val")
    assert hit.similarity == pytest.approx(1)


def test_hits_are_ranked_and_counted():
    hits = index().search(targets()[0, 0], top_k=100)
    assert [hit.rank for hit in hits] == list(range(1, 33))
    assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
    assert len({(hit.frame, hit.patch) for hit in hits}) == 32


def test_norms_do_not_matter():
    scale = torch.arange(1, 33, dtype=torch.float32).view(4, 8, 1)
    query = torch.randn(16, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(index(targets() * scale).similarities(query), index().similarities(query * 7))


def test_both_sources_can_be_searched():
    mixed = index(targets().flip(0))
    query = targets()[1, 3]
    assert mixed.search(query, source="target")[0].frame == 1
    assert mixed.search(query, source="predicted")[0].frame == 2


def test_agreement_of_equal_rankings_is_perfect():
    agreement = index().agreement(targets()[1, 1])
    assert agreement.recall == {1: 1.0, 5: 1.0, 10: 1.0}
    assert agreement.first_target_rank == 1
    assert agreement.spearman == pytest.approx(1)
    assert agreement.margin == agreement.target_margin > 0.5
    assert agreement.chance == {1: 1 / 32, 5: 5 / 32, 10: 10 / 32}


def test_agreement_falls_with_noise_and_reaches_chance():
    query = targets()[1, 1]
    noise = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(7))
    close = index(targets() + 0.3 * noise).agreement(query)
    unrelated = index(noise).agreement(query)
    assert 0.8 < close.spearman < 1
    assert abs(unrelated.spearman) < 0.5
    assert unrelated.recall[10] < close.recall[10]


def test_a_reversed_ranking_is_anticorrelated():
    agreement = index(-targets()).agreement(targets()[1, 1], ks=(1, 50))
    assert agreement.spearman == pytest.approx(-1)
    assert agreement.first_target_rank == 32
    assert agreement.recall == {1: 0.0}  # 50 are more patches than there are


def test_spearman_shares_ranks_between_ties():
    a = torch.tensor([1.0, 2, 2, 4])
    b = torch.tensor([1.0, 3, 2, 4])
    assert spearman(a, b) == pytest.approx(0.9486833)  # scipy.stats.spearmanr
    assert spearman(torch.ones(4), b) == 0


def test_parts_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"\(4, 7, 16\) and \(4, 8, 16\)"):
        index(targets()[:, :7])
    with pytest.raises(ValueError, match=r"columns that divide 8 patches, got .* 3 columns"):
        PatchIndex(predicted=targets(), targets=targets(), splits=SPLITS, columns=3)
    with pytest.raises(ValueError, match=r"query .*vector of length 16, got .*\(512,\)"):
        index().search(torch.ones(512))
    with pytest.raises(ValueError, match=r"query .*finite and nonzero"):
        index().search(torch.zeros(16))


def test_the_sheet_shows_the_patches_in_rank_order(tmp_path):
    hits = index().search(targets()[0, 0], top_k=7)
    patches = [torch.full((3, 40, 80), level / 10) for level in range(7)]
    search_sheet(hits, patches, tmp_path / "found" / "sheet.png", title="a rabbit")
    with Image.open(tmp_path / "found" / "sheet.png") as sheet:
        assert sheet.size == (5 * (160 + 12) + 12, 2 * (80 + 66) + 48)
        assert [sheet.getpixel((20 + 172 * i, 60)) for i in range(5)] == [(round(25.5 * i),) * 3 for i in range(5)]
        assert sheet.getpixel((20, 60 + 146)) == (round(127.5),) * 3


def test_a_sheet_needs_a_patch_per_hit(tmp_path):
    hits = index().search(functional.normalize(targets()[0, 0], dim=0), top_k=2)
    with pytest.raises(ValueError, match="1 patches, 2 hits"):
        search_sheet(hits, [torch.zeros(3, 8, 8)], tmp_path / "sheet.png")
    with pytest.raises(ValueError, match="0 patches, 0 hits"):
        search_sheet([], [], tmp_path / "sheet.png")
