"""Search in a trained clip: encodes a query with the run's teacher, and ranks and renders the patches."""

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
    """Result of a search.

    Attributes:
        hits: best patches by the network's embeddings.
        by_target: best patches by the teacher's embeddings of the true frames; None without the clip.
        agreement: agreement of the two rankings; None without the clip.
    """

    hits: tuple[Hit, ...]
    by_target: tuple[Hit, ...] | None
    agreement: Agreement | None


def search_clip(
    player: Playback, query: Float[Tensor, " dim"], *, top_k: int = 10, on_frame: Callable[[], None] = lambda: None
) -> SearchResult:
    """Rank all patches of a clip by their similarity to a query.

    Args:
        player: trained clip.
        query: query embedding, from the teacher of the clip's targets.
        top_k: number of hits.
        on_frame: called after every frame.

    Raises:
        ValueError: there is no semantic head, or the query has another length.
    """
    index = player.index(on_frame)
    hits = tuple(index.search(query, top_k=top_k))
    # A bitstream has no targets to compare with.
    if player.targets is None:
        return SearchResult(hits=hits, by_target=None, agreement=None)
    # The ranking that a network with the teacher's own embeddings would return.
    by_target = tuple(index.search(query, top_k=top_k, source="target"))
    return SearchResult(hits=hits, by_target=by_target, agreement=index.agreement(query))


def write_sheet(player: Playback, result: SearchResult, path: Path, title: str) -> Path:
    """Write an image of the hits as rendered by the network."""
    search_sheet(result.hits, [player.patch(hit.frame, hit.row, hit.column) for hit in result.hits], path, title=title)
    return path


def encode_text(player: Playback, text: str, setting: str) -> Float[Tensor, " dim"]:
    """Encode a text query.

    Args:
        player: trained clip.
        text: text to encode verbatim, without a template.
        setting: location of the encoder, as in ``--teacher``.

    Raises:
        InputError: the clip has no semantic head, its targets are not from CLIP, or its CLIP model is not available.
    """
    # Checked before CLIP is loaded, which takes seconds.
    if player.origin.embeds and player.origin.teacher == ImageDescriptor.name:
        raise InputError(
            f"--text needs CLIP, but the targets of this run come from {player.origin.teacher}, which measures colors "
            "and edges and cannot encode text. Search with --image, or train with --teacher FOLDER (a folder of CLIP "
            "weights)"
        )
    return _teacher_of(player, setting).encode_text([text])[0]


def encode_image(player: Playback, picture: UInt8[Tensor, "3 height width"], setting: str) -> Float[Tensor, " dim"]:
    """Encode an image query as a whole.

    Args:
        player: trained clip.
        picture: image to search for, ideally a crop about as large as a patch.
        setting: location of the encoder, as in ``--teacher``.

    Raises:
        ValueError: the clip has no semantic head, or the encoder of its targets is not available.
    """
    return _teacher_of(player, setting).encode_images(picture[None])[0]


def _teacher_of(player: Playback, setting: str) -> Teacher:
    """Return the encoder of the clip's targets.

    Raises:
        InputError: there is no semantic head, or the encoder is not available.
    """
    origin = player.origin
    if not origin.embeds:
        raise InputError(origin.no_head)
    requested = "descriptor" if origin.teacher == ImageDescriptor.name else setting
    teacher = find_teacher(requested, player.device).teacher
    # Vectors of different encoders have no common space, even if their lengths agree.
    if teacher.name != origin.teacher:
        raise InputError(
            f"the targets of this run come from {origin.teacher}, but the encoder found here is {teacher.name}, whose "
            "vectors cannot be compared with them: give --teacher FOLDER with the CLIP weights of the training"
        )
    return teacher
