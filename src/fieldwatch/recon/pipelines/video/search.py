"""Search in a video by text or image: an index of all patch embeddings, and its agreement with the targets.

Similarities of a text to a matching and to a non-matching image differ by a few hundredths only (openai/CLIP issue
405), so absolute values mean little: use the margin over the median, and the agreement with the ranking by targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from fieldwatch import InputError
from fieldwatch.files import whole_file
from fieldwatch.recon.pipelines.video.split import Label

Source = Literal["predicted", "target"]


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A patch in a ranking.

    Attributes:
        rank: rank, 1 for the most similar.
        similarity: cosine with the query.
        frame: index of its frame.
        patch: row-major index in the patch grid.
        row: row in the patch grid.
        column: column in the patch grid.
        split: "train", "val" or "unused".
    """

    rank: int
    similarity: float
    frame: int
    patch: int
    row: int
    column: int
    split: Label


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of the rankings by predicted and by target embeddings.

    Attributes:
        margin: best similarity minus the median, by predicted embeddings.
        target_margin: best similarity minus the median, by target embeddings.
        recall: fraction of the best k targets among the best k predictions, per k.
        first_target_rank: rank of the best target patch in the predicted ranking.
        spearman: rank correlation over all patches.
        chance: recall of a random ranking, k / patches, per k.
    """

    margin: float
    target_margin: float
    recall: dict[int, float]
    first_target_rank: int
    spearman: float
    chance: dict[int, float]


class PatchIndex:
    """Unit-norm embeddings of all patches of a clip, predicted and true, shared by all queries."""

    def __init__(
        self,
        *,
        predicted: Float[Tensor, "frames patches dim"],
        targets: Float[Tensor, "_ _ _"],
        splits: Sequence[Label],
        columns: int,
    ) -> None:
        """Normalize and store the embeddings of every frame.

        Args:
            predicted: embeddings predicted by the model.
            targets: embeddings of the true frames by the teacher, of the same shape.
            splits: "train", "val" or "unused" per frame.
            columns: number of columns of the patch grid.

        Raises:
            ValueError: shapes differ, or the grid or the splits do not match them.
        """
        # The shape of the targets is the reference: they come from the clip.
        frames, patches, _ = targets.shape
        if predicted.shape != targets.shape:
            shapes = f"{tuple(predicted.shape)} and {tuple(targets.shape)}"
            raise ValueError(f"predicted and target embeddings must both be frames x patches x dim, got {shapes}")
        if len(splits) != frames or patches % columns:
            msg = (
                f"expected {frames} splits and columns that divide {patches} patches, got {len(splits)} splits and "
                f"{columns} columns"
            )
            raise ValueError(msg)
        # Normalized once, so that a query is a single matrix product.
        self.predicted = functional.normalize(predicted.float(), dim=-1)
        self.targets = functional.normalize(targets.float(), dim=-1)
        self.splits = tuple(splits)
        self.columns = columns

    def similarities(self, query: Float[Tensor, " dim"], source: Source = "predicted") -> Float[Tensor, " patches"]:
        """Return the cosine of the query with every patch, frame by frame.

        Raises:
            InputError: the query has another length than the embeddings, or is zero or not finite.
        """
        embeddings = self.predicted if source == "predicted" else self.targets
        if query.shape != embeddings.shape[-1:]:
            msg = f"the query must be a vector of length {embeddings.shape[-1]}, got shape {tuple(query.shape)}: "
            raise InputError(msg + "encode it with the encoder of the targets")
        if not bool(torch.isfinite(query).all()) or not bool(query.any()):
            raise InputError("the query must be finite and nonzero: encode it again")
        return embeddings.flatten(0, 1) @ functional.normalize(query.float().to(embeddings.device), dim=0)

    def search(self, query: Float[Tensor, " dim"], *, top_k: int = 10, source: Source = "predicted") -> list[Hit]:
        """Return the ``top_k`` patches most similar to an embedding, best first; ties in frame order."""
        similarity = self.similarities(query, source)
        # A stable sort, so that ties are in frame order on all machines.
        order = similarity.argsort(descending=True, stable=True)[:top_k].tolist()
        return [self._hit(rank, index, float(similarity[index])) for rank, index in enumerate(order, start=1)]

    def agreement(self, query: Float[Tensor, " dim"], ks: Sequence[int] = (1, 5, 10)) -> Agreement:
        """Compare the rankings by predicted and by target embeddings; a k above the number of patches is dropped."""
        predicted = self.similarities(query)
        target = self.similarities(query, "target")
        ranking, truth = (s.argsort(descending=True, stable=True) for s in (predicted, target))
        # Recall at k is undefined for k above the number of patches.
        ks = [k for k in ks if k <= len(ranking)]
        return Agreement(
            margin=float(predicted.max() - predicted.median()),
            target_margin=float(target.max() - target.median()),
            recall={k: len(set(ranking[:k].tolist()) & set(truth[:k].tolist())) / k for k in ks},
            first_target_rank=1 + ranking.tolist().index(int(truth[0])),
            spearman=spearman(predicted, target),
            chance={k: k / len(ranking) for k in ks},
        )

    def _hit(self, rank: int, index: int, similarity: float) -> Hit:
        frame, patch = divmod(index, self.targets.shape[1])
        row, column = divmod(patch, self.columns)
        return Hit(
            rank=rank,
            similarity=similarity,
            frame=frame,
            patch=patch,
            row=row,
            column=column,
            split=self.splits[frame],
        )


def spearman(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> float:
    """Return the rank correlation, with ties at their mean rank; 0 if one side is constant."""
    ranks = torch.stack([_mean_ranks(a), _mean_ranks(b)])
    centered = ranks - ranks.mean(dim=1, keepdim=True)
    norms = centered.norm(dim=1)
    # Spearman's correlation is Pearson's correlation of the ranks.
    return float((centered[0] @ centered[1]) / (norms[0] * norms[1])) if bool(norms.all()) else 0.0


def search_sheet(
    hits: Sequence[Hit], patches: Sequence[Float[Tensor, "3 height width"]], path: Path, *, title: str = ""
) -> None:
    """Write a PNG with the patches of the hits in rank order, five per row, each with rank, similarity and position.

    Args:
        hits: ranking of patches.
        patches: image of each hit in [0, 1], all of the same size.
        path: path of the PNG.
        title: query.

    Raises:
        ValueError: there are no hits, or their number differs from that of the patches.
    """
    if not hits or len(hits) != len(patches):
        raise ValueError(f"expected one patch per hit and at least one, got {len(patches)} patches, {len(hits)} hits")
    font = ImageFont.load_default(13)
    heading = ImageFont.load_default(20)
    # Integer factors keep pixels square and sharp.
    enlarge = -(-_NARROWEST // patches[0].shape[-1])
    height, width = (enlarge * int(side) for side in patches[0].shape[-2:])
    cell = (width + 12, height + 66)
    columns = min(5, len(hits))
    size = (columns * cell[0] + 12, -(-len(hits) // columns) * cell[1] + 48)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((12, 12), title, fill="black", font=heading)
    for i, (hit, patch) in enumerate(zip(hits, patches, strict=True)):
        left = 12 + i % columns * cell[0]
        top = 48 + i // columns * cell[1]
        sheet.paste(_picture(patch).resize((width, height), Image.Resampling.NEAREST), (left, top))
        draw.text((left, top + height + 2), f"#{hit.rank}   {hit.similarity:.4f}", fill="black", font=font)
        draw.text((left, top + height + 18), f"frame {hit.frame}, {hit.split}", fill=_COLORS[hit.split], font=font)
        draw.text((left, top + height + 34), f"row {hit.row}, column {hit.column}", fill="black", font=font)
    with whole_file(path) as draft:
        sheet.save(draft, "PNG")


_NARROWEST = 140  # minimum width of a cell in pixels, so that its text fits
_COLORS = {"train": "#1f5fa8", "val": "#b8420f", "unused": "#666666"}


def _picture(patch: Float[Tensor, "3 height width"]) -> Image.Image:
    # Rounded, not truncated, like the 8-bit frames of playback.
    levels = (patch.detach().clamp(0, 1) * 255).round().to("cpu", torch.uint8)
    return Image.fromarray(levels.permute(1, 2, 0).contiguous().numpy())


def _mean_ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the float64 rank of each value; equal values share their mean rank."""
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    last = sizes.cumsum(0).double()
    return (last - (sizes.double() - 1) / 2)[group]
