"""Memory runs out at chosen places of real trainings: the run goes on, and equals the one that had as many parts.

    python benchmarks/torture/memory.py            # every case, about a minute
    python benchmarks/torture/memory.py --quick    # the video cases

The errors are planted (`torch.OutOfMemoryError` out of the middle of a step, after random numbers were drawn and
gradients added up); that the real allocator's are seen as well is shown by tests/run/test_attempts.py.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

PARENT = str(Path(__file__).resolve().parents[1])
if PARENT not in sys.path:
    sys.path.append(PARENT)  # where ``torture`` is found


from fieldwatch import Checkpoints, read_history  # noqa: E402  after the path
from fieldwatch.recon.pipelines import video  # noqa: E402  after the path
from fieldwatch.record import read_events  # noqa: E402  after the path
from fieldwatch.run.retry import Retry  # noqa: E402  after the path
from torture.resume_cases import draw_frames, normals_case, splats_case  # noqa: E402  after the path
from torture.rows import Row, judged  # noqa: E402  after the path

video_loop, video_looks, normals_loop, normals_surface, normals_views, splats_loop, splats_looks = (
    import_module(f"fieldwatch.recon.pipelines.{name}")  # the modules: some rooms have functions of the same names
    for name in (
        *("video.algorithm", "video.evaluation", "normals.algorithm", "normals.surface"),
        *("normals.views", "splats.algorithm", "splats.evaluation"),
    )
)

AT = 11
PARTS = 2
MOST = 8
"""The step that runs out of memory, the parts with which it no longer does, and how often it may be tried."""
MOST_LOOKS = 300
"""How often all looks of a run may run out of memory: the parts double each time."""
EVALUATION_STATE = ("/state/evaluation_batches", "/state/validation")
"""Items of a checkpoint that count the micro-batches of evaluations: they differ where an evaluation ran out."""
LOOKED = "is made in parts; the training is as without"
MESHED = "is made in smaller blocks; the same surface"
HOPELESS = "evaluation always out of memory"
WANTED = "goes on at the same step; equal, bit for bit, to the run in as many parts"


def run_out(*_: object, **__: object) -> None:
    """Fail as torch's allocator does."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB (planted)")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Where a pipeline's training is told of its parts, and where it fails.

    Attributes:
        name: of the pipeline.
        train: trains in a folder.
        module: of the function that fails.
        function: its name; it is called once per part.
    """

    name: str
    train: Callable[[Path], object]
    module: Any
    function: str

    @contextmanager
    def told(self, look: Callable[[int, Any], None]) -> Iterator[None]:
        """Show every attempt's step and parts to somebody first."""
        made = Retry.__call__

        def retried(retry: Retry, work: Callable[[], Any], micro_batches: Any, *, step: Any, **options: Any) -> Any:
            def attempt() -> Any:
                if step is not None and micro_batches.name != "evaluation":
                    look(step.index, micro_batches)
                return work()

            return made(retry, attempt, micro_batches, step=step, **options)

        with patch.object(Retry, "__call__", retried):
            yield

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Run out of memory at one step, at the second call of the function in it, while there are too few parts."""
        armed = [False]
        calls = [0]
        tries = [0]
        made = getattr(self.module, self.function)

        def look(step: int, parts: Any) -> None:
            tries[0] += step == AT
            if tries[0] > MOST:
                raise RuntimeError(f"step {AT} was done {tries[0]} times, and still in {parts.count} parts")
            armed[0] = step == AT and parts.count < PARTS
            calls[0] = 0

        def function(*arguments: Any, **named: Any) -> object:
            calls[0] += 1
            result = made(*arguments, **named)
            if armed[0]:
                torch.rand(7)  # the step may have drawn numbers before
                run_out()
            return result

        with self.told(look), patch.object(self.module, self.function, function):
            yield

    def chunked(self) -> AbstractContextManager[None]:
        """Have as many parts from that step on without running out of memory."""

        def look(step: int, parts: Any) -> None:
            parts.count = PARTS if step >= AT else parts.count

        return self.told(look)


def loops(folder: Path, only: Collection[str]) -> list[Loop]:
    """The loops of these pipelines."""
    found: list[Loop] = []
    if "video" in only:
        found.append(video_loop_of(folder))
    if "normals" in only:
        maps = normals_case(folder / "maps")
        found.append(
            Loop(
                name="normals",
                train=maps.train,
                module=normals_loop,
                function="staged_terms",
            )
        )
    if "splats" in only:
        found.append(splats_loop_of(folder))
    return found


def video_loop_of(folder: Path) -> Loop:
    """The loop of a video."""
    config = video.VideoConfig(
        data=draw_frames(folder / "frames"),
        model="dual",  # it draws patches: a frame can be drawn in parts
        options=replace(video.VideoConfig().options, fc_dim=4, lower_width=2),
        rows=1,
        columns=2,
        batch=4,
        teacher="descriptor",
        epochs=6,
        eval_freq=3,
        pixel_loss_warmup_epochs=1,
        checkpoint_epochs=100,
        device="cpu",
        cache=folder / "cache",
    )
    scene = video.prepare_scene(config)
    return Loop(
        name="video",
        train=lambda at: video.train_video(config, scene, at, sinks=()),
        module=video_loop,
        function="video_terms",
    )


def splats_loop_of(folder: Path) -> Loop:
    """The loop of the splats, whose pictures are drawn in bands."""
    return Loop(
        name="splats",
        train=splats_case(folder / "photos", streams=False).train,
        module=splats_loop,
        function="loss_terms",
    )


EVERY_LOOP = ("video", "normals", "splats")


def run_memory_faults(folder: Path, *, only: Collection[str] = EVERY_LOOP) -> list[Row]:
    """Run out of memory in training, evaluation and mesh extraction, and compare each with the run it should equal."""
    rows: list[Row] = []
    for loop in loops(folder, only):
        place = folder / loop.name
        plain = trained(loop, place / "plain")
        rows += [
            kept(training, (loop, place), "P13", f"{loop.name}: training", WANTED),
            kept(evaluation, (loop, place, plain), "P13", f"{loop.name}: evaluation", LOOKED),
            kept(hopeless, (loop, place, plain), "P14", f"{loop.name}: {HOPELESS}", "training bit-equal"),
        ]
        if loop.name == "normals":
            rows.append(kept(mesh, (loop, place, plain), "P13", "normals: mesh extraction", MESHED))
    return rows


def kept(work: Callable[..., Row], given: tuple[Any, ...], promise: str, what: str, wanted: str) -> Row:
    """The row of a trial, also where a training ended that was to go on."""
    try:
        return work(*given)
    except (RuntimeError, ValueError, ArithmeticError, MemoryError, OSError) as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        return judged(promise, what, wanted, "the training ended", good=False, why=why)


def trained(loop: Loop, folder: Path, *planted: AbstractContextManager[Any]) -> dict[str, Any]:
    """Train, with faults or without; return the last checkpoint and the losses."""
    with ExitStack() as stack:
        for one in planted:
            stack.enter_context(one)
        loop.train(folder)
    return trained_state(folder)


def trained_state(folder: Path) -> dict[str, Any]:
    """The last checkpoint of a run, and its losses."""
    checkpoints = Checkpoints(folder / "checkpoints")
    return {"state": checkpoints.read(max(checkpoints.steps())), "losses": read_history(folder)["Loss/total"].values}


def differences(one: Any, other: Any, path: str = "", *, but: tuple[str, ...] = ()) -> list[str]:
    """The leaves that are not the same, bit for bit, leaving some out."""
    if path in but:
        return []
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return [text for key in one for text in differences(one[key], other[key], f"{path}/{key}", but=but)]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [text for i, (mine, theirs) in pairs for text in differences(mine, theirs, f"{path}/{i}", but=but)]
    if isinstance(one, torch.Tensor | np.ndarray):
        same = type(one) is type(other) and np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)
    else:
        same = one == other or repr(one) == repr(other)  # NaN is not itself
    return [] if same else [path]


def events(folder: Path, kind: str) -> list[Mapping[str, Any]]:
    """The events of a kind in a run."""
    return [event for event in read_events(folder) if event["kind"] == kind]


def alike(one: Any, other: Any) -> bool:
    """Whether figures are the same but for the rounding of sums in another order."""
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-4))


def training(loop: Loop, place: Path) -> Row:
    """Memory runs out in the middle of a step."""
    failed = trained(loop, place / "failed", loop.failing())
    wrong = differences(failed, trained(loop, place / "chunked", loop.chunked()))
    told = events(place / "failed", "out_of_memory")
    good = not wrong and [event["step"] for event in told] == [AT]
    found = f"step {AT} done again in {PARTS} parts, {len(failed['losses'])} steps equal" if good else f"{wrong[:3]}"
    return judged("P13", f"{loop.name}: training", WANTED, found, good=good)


def evaluation(loop: Loop, place: Path, plain: Mapping[str, Any]) -> Row:
    """Memory runs out while views or frames are drawn, all at once."""
    failed = trained(loop, place / "look", looks_fail(loop, always=False))
    told = events(place / "look", "out_of_memory")
    lost = events(place / "look", "validation_failed")
    wrong = differences(failed, plain, but=EVALUATION_STATE)
    found_figures = read_history(place / "look")
    wanted_figures = read_history(place / "plain")
    names = [name for name in wanted_figures.names() if name in MEASURED]
    for name in names:
        if name not in found_figures or not alike(found_figures[name].values, wanted_figures[name].values):
            wrong.append(name)
    good = bool(told and names) and not wrong and not lost and told[-1]["after"] > told[-1]["before"]
    found = f"in {told[-1]['after']} parts; figures and training as without" if good else f"{wrong[:3]} {told} {lost}"
    return judged("P13", f"{loop.name}: evaluation", LOOKED, found, good=good)


def hopeless(loop: Loop, place: Path, plain: Mapping[str, Any]) -> Row:
    """Memory runs out in every evaluation, whatever the parts."""
    failed = trained(loop, place / "hopeless", looks_fail(loop, always=True))
    wrong = differences(failed, plain, but=EVALUATION_STATE)
    lost = events(place / "hopeless", "validation_failed")
    good = bool(lost) and not wrong
    found = f"{len(lost)} recorded, training bit-equal" if good else f"{wrong[:3]}, {len(lost)} recorded"
    return judged("P14", f"{loop.name}: {HOPELESS}", "training bit-equal", found, good=good)


MEASURED = ("Eval/Frame/train_psnr", "Eval/mae", "Eval/mesh_faces", "Eval/mesh_vertices", "Test/psnr")
"""Figures that must not depend on the number of parts."""


@contextmanager
def looks_fail(loop: Loop, *, always: bool) -> Iterator[None]:
    """Run out of memory at most of the first looks, or in each of them until a run is over."""
    places = {
        "video": (video_looks, "render_frame"),
        "normals": (normals_views, "_blended"),
        "splats": (splats_looks, "_timed"),
    }
    module, name = places[loop.name]
    made = getattr(module, name)
    calls = [0]

    def drawn(*arguments: Any, **named: Any) -> object:
        torch.rand(7)  # it may have drawn numbers before
        calls[0] += 1
        if always and calls[0] > MOST_LOOKS:
            raise RuntimeError(f"{calls[0]} looks ran out of memory: the parts do not grow")
        return run_out() if always or calls[0] == 1 else made(*arguments, **named)

    with ExitStack() as stack:
        stack.enter_context(patch.object(module, name, drawn))
        if always and loop.name == "normals":  # the products after the loop look again, and are not what is tried here
            stack.enter_context(patch.object(normals_loop, "write_products", lambda *_, **__: {}))
        yield


def mesh(loop: Loop, place: Path, plain: Mapping[str, Any]) -> Row:
    """Memory runs out for a block of the mesh."""
    made = normals_surface.implicit_surface

    def marched(*arguments: Any, **named: Any) -> object:
        return run_out() if named["block"] > 16 else made(*arguments, **named)

    failed = trained(loop, place / "mesh", patch.object(normals_surface, "implicit_surface", marched))
    wrong = differences(failed, plain, but=EVALUATION_STATE)
    histories = [read_history(place / name) for name in ("mesh", "plain")]
    figures = [one["Eval/mesh_faces"].values.tolist() if "Eval/mesh_faces" in one else [] for one in histories]
    told = events(place / "mesh", "out_of_memory")
    lost = events(place / "mesh", "validation_failed")
    good = bool(told) and not wrong and not lost and figures[0] == figures[1]
    found = f"in blocks of 16, {figures[0][-1]:.0f} faces as without" if good else f"{wrong[:3]} {figures} {lost}"
    return judged("P13", "normals: mesh extraction", MESHED, found, good=good)


def main() -> int:
    """Run all, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the video cases only")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        rows = run_memory_faults(Path(folder), only=("video",) if quick else EVERY_LOOP)
    for row in rows:
        print(f"{row.promise}  {row.verdict:13}  {row.what}: {row.found}")
    return 0 if all(row.verdict == "holds" for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
