"""``fieldwatch infer video SOURCE``: render a trained clip, completely or in parts, and search it."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from fieldwatch.cli.kit import (
    BadInput,
    Terminal,
    check_writable,
    counting_frames,
    open_stored,
    print_json,
    print_paths,
    read_flags,
    reading_input,
)
from fieldwatch.files import output_path
from fieldwatch.pipeline import plain_values
from fieldwatch.recon.commands.video.flags import InferVideoFlags
from fieldwatch.recon.data import read_picture, write_video
from fieldwatch.recon.pipelines.video import (
    Playback,
    SearchResult,
    encode_image,
    encode_text,
    open_run,
    save_picture,
    search_clip,
    write_sheet,
)


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(InferVideoFlags, prog="fieldwatch infer video", arguments=arguments)
    check_arguments(chosen)
    player, folder, teacher = open_player(chosen)
    console = Terminal(stderr=chosen.json)
    with reading_input():
        # Everything is checked before the first frame is rendered.
        check_drawable(chosen, player)
        query = query_of(chosen, player, teacher)
        check_writable(folder)
    files = write_pictures(chosen, player, folder, console)
    result = None
    if query is not None:
        with counting_frames(console, "embedding", player.geometry.frames) as on_frame:
            result = search_clip(player, query, top_k=chosen.top_k, on_frame=on_frame)
        title = search_title(chosen)
        files["search"] = write_sheet(player, result, output_path(folder, f"search_{slug(title)}.png"), title)
        if not chosen.json:
            print_search(console, result, title)
    paths = {name: path.absolute() for name, path in files.items()}
    if chosen.json:
        about = {"source": chosen.source, "step": player.origin.step, "teacher": player.origin.teacher}
        print_json({**about, "files": paths, "search": None if result is None else search_json(result)})
    else:
        print_paths(console, paths)
    return 0


def check_arguments(chosen: InferVideoFlags) -> None:
    """Refuse values that are wrong for every source.

    Raises:
        BadInput: nothing is requested, or a number is out of bounds.
    """
    if not (chosen.frames or chosen.time or chosen.patch or chosen.mp4 or chosen.text is not None or chosen.image):
        raise BadInput("nothing to render: give --frames, --time, --patch, --mp4, --text or --image")
    if chosen.text is not None and chosen.image:
        raise BadInput("--text and --image are two searches: give one of them")
    if chosen.text is not None and not chosen.text.strip():
        raise BadInput("--text must not be empty: describe what to search for, as in --text 'a rabbit'")
    if not 0 < chosen.fps <= 1000:
        raise BadInput(f"--fps must be greater than 0 and at most 1000, got {chosen.fps:g}")
    if chosen.top_k < 1:
        raise BadInput(f"--top-k must be at least 1, got {chosen.top_k}")


def open_player(chosen: InferVideoFlags) -> tuple[Playback, Path, str]:
    """Open the run or the file; return it, the default folder for pictures, and the teacher setting.

    Raises:
        BadInput: the source is neither, or cannot be read.
    """
    source = chosen.source
    # The folder of a run, or a single exported file.
    if source.is_file():
        with reading_input():
            player = Playback.of_bitstream(source, chosen.device)
        return player, chosen.out or source.with_name(f"{source.stem}-drawn"), chosen.teacher or "auto"
    if not source.exists():
        raise BadInput(f"{source} does not exist: give a run folder, or a file that `fieldwatch export` wrote")
    run = open_stored(partial(open_run, device=chosen.device), source, chosen.checkpoint)
    folder = chosen.out or output_path(source, "products", f"infer-{run.step}")
    return Playback.of_run(run), folder, chosen.teacher or run.config.teacher


def check_drawable(chosen: InferVideoFlags, player: Playback) -> None:
    """Refuse frames and patches that the clip does not have, before anything is rendered.

    Raises:
        ValueError: a frame or patch is out of range; the message gives the range.
    """
    for time in (*chosen.frames, *chosen.time):
        player.check_time(time)
    if chosen.patch is not None:
        player.check_time(chosen.patch[0])
        player.check_patch(*chosen.patch[1:])


def query_of(chosen: InferVideoFlags, player: Playback, teacher: str) -> Tensor | None:
    """Return the embedding of the search; None without a search.

    Raises:
        ValueError: there is no semantic head, no matching encoder, or no readable picture.
    """
    if chosen.text is not None:
        return encode_text(player, chosen.text, teacher)
    if chosen.image is not None:
        return encode_image(player, read_picture(chosen.image), teacher)
    return None


def write_pictures(chosen: InferVideoFlags, player: Playback, folder: Path, console: Console) -> dict[str, Path]:
    """Render the requested pictures and film; return the files by content."""
    files = {}
    for index in chosen.frames:
        files[f"frame {index}"] = save_picture(output_path(folder, f"frame_{index:05d}.png"), player.frame(index))
    for time in chosen.time:
        files[f"time {time:g}"] = save_picture(output_path(folder, f"time_{time:09.3f}.png"), player.frame(time))
    if chosen.patch is not None:
        index, row, column = chosen.patch
        name = f"patch_{index:05d}_row{row}_column{column}.png"
        files["patch"] = save_picture(output_path(folder, name), player.patch(index, row, column))
    if chosen.mp4:
        with counting_frames(console, "rendering", player.geometry.frames) as on_frame:
            files["video"] = write_video(output_path(folder, "clip.mp4"), player.all_frames(on_frame), rate=chosen.fps)
    return files


def search_title(chosen: InferVideoFlags) -> str:
    """Return a title for the search."""
    return f'"{chosen.text}"' if chosen.text is not None else f"like {chosen.image}"


def slug(title: str) -> str:
    """Return a title as a part of a file name."""
    return re.sub(r"\W+", "_", title.lower()).strip("_")[:60] or "query"


def print_search(console: Console, result: SearchResult, title: str) -> None:
    """Print the ranking, and its agreement with the ranking by the ground-truth frames."""
    table = Table(title=f"patches {title}", title_justify="left")
    for column in ("rank", "similarity", "frame", "row", "column", "set"):
        table.add_column(column, justify="left" if column == "set" else "right")
    for hit in result.hits:
        cells = (hit.rank, f"{hit.similarity:.4f}", hit.frame, hit.row, hit.column, hit.split)
        table.add_row(*(str(cell) for cell in cells))
    console.print(table)
    agreement = result.agreement
    if agreement is None:
        console.print("  ranked by predicted embeddings only: the file holds no ground-truth frames to compare with")
        return
    for k, recall in agreement.recall.items():
        console.print(f"  recall of the top {k} by the true frames: {recall:.0%} (by chance {agreement.chance[k]:.1%})")
    margins = f"{agreement.margin:.4f} predicted, {agreement.target_margin:.4f} by the true frames"
    console.print(f"  rank correlation {agreement.spearman:.3f}; best minus median similarity: {margins}")


def search_json(result: SearchResult) -> dict[str, Any]:
    """Return the result of a search as plain values."""
    agreement = result.agreement
    return {
        "hits": [asdict(hit) for hit in result.hits],
        "by_target": None if result.by_target is None else [asdict(hit) for hit in result.by_target],
        "agreement": None if agreement is None else plain_values(asdict(agreement)),
    }
