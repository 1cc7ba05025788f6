"""Looking something up in a trained clip: the query encoded by the run's own teacher, the patches ranked and drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.pipelines.video.descriptor import ImageDescriptor
from fieldwatch.recon.pipelines.video.playback import Playback
from fieldwatch.recon.pipelines.video.search import Agreement, Hit, search_sheet
from fieldwatch.recon.pipelines.video.teacher import Teacher, find_teacher


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        hits: the best patches by what the network says of them.
        by_target: the best patches by what the teacher says of the true frames; None without the clip.
        agreement: how the two rankings agree; None without the clip.
    """

    hits: tuple[Hit, ...]
    by_target: tuple[Hit, ...] | None
    agreement: Agreement | None


def search_clip(
    player: Playback, query: Float[Tensor, " dim"], *, top_k: int = 10, on_frame: Callable[[], None] = lambda: None
) -> SearchResult:
    """Rank all patches of a clip by a query.

    Args:
        player: the clip.
        query: what is looked for, by the encoder that made the clip's targets.
        top_k: how many hits.
        on_frame: called after every frame.

    Raises:
        ValueError: there is no semantic head, or the query is of another length.
    """
    index = player.index(on_frame)
    hits = tuple(index.search(query, top_k=top_k))
    if player.targets is None:
        return SearchResult(hits=hits, by_target=None, agreement=None)
    by_target = tuple(index.search(query, top_k=top_k, source="target"))
    return SearchResult(hits=hits, by_target=by_target, agreement=index.agreement(query))


def write_sheet(player: Playback, result: SearchResult, path: Path, title: str) -> Path:
    """Write a picture of the hits, as the network draws them."""
    search_sheet(result.hits, [player.patch(hit.frame, hit.row, hit.column) for hit in result.hits], path, title=title)
    return path


def encode_text(player: Playback, text: str, setting: str) -> Float[Tensor, " dim"]:
    """Encode words for a search.

    Args:
        player: the clip.
        text: taken word for word, without a template.
        setting: where the encoder is, as in ``--teacher``.

    Raises:
        InputError: the clip has no semantic head, its targets do not come from CLIP, or its CLIP is not here.
    """
    if player.origin.embeds and player.origin.teacher == ImageDescriptor.name:
        raise InputError(
            f"--text needs CLIP: the targets of this run come from {player.origin.teacher}, which measures colours and "
            "edges and cannot read. Search with --image, or train with --teacher FOLDER (a folder of CLIP weights)"
        )
    return _teacher_of(player, setting).encode_text([text])[0]


def encode_image(player: Playback, picture: UInt8[Tensor, "3 height width"], setting: str) -> Float[Tensor, " dim"]:
    """Encode a picture for a search, whole.

    Args:
        player: the clip.
        picture: what to look for; a cut-out of about one patch serves best.
        setting: where the encoder is, as in ``--teacher``.

    Raises:
        ValueError: the clip has no semantic head, or the encoder that made its targets is not here.
    """
    return _teacher_of(player, setting).encode_images(picture[None])[0]


def _teacher_of(player: Playback, setting: str) -> Teacher:
    """The encoder that made the clip's targets, and no other.

    Raises:
        InputError: there is no semantic head, or that encoder is not here.
    """
    origin = player.origin
    if not origin.embeds:
        raise InputError(origin.no_head)
    wanted = "descriptor" if origin.teacher == ImageDescriptor.name else setting
    teacher = find_teacher(wanted, player.device).teacher
    if teacher.name != origin.teacher:
        raise InputError(
            f"the targets of this run come from {origin.teacher}, the encoder found here is {teacher.name}: their "
            "vectors cannot be compared; give --teacher FOLDER with the CLIP weights that the run was trained with"
        )
    return teacher
