"""Memory runs out at chosen places of trainings: the run continues, and equals one with as many parts from the start.

    python benchmarks/torture/memory.py            # every case, about a minute
    python benchmarks/torture/memory.py --quick    # the video cases

The errors are planted: `torch.OutOfMemoryError` in the middle of a step, after random numbers were drawn and gradients
were accumulated. tests/run/test_attempts.py tests errors of the real allocator.
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
    sys.path.append(PARENT)  # the folder of the package ``torture``


from fieldwatch import Checkpoints, read_history  # noqa: E402  needs the path
from fieldwatch.recon.pipelines import video  # noqa: E402  needs the path
from fieldwatch.record import read_events  # noqa: E402  needs the path
from fieldwatch.run.retry import Retry  # noqa: E402  needs the path
from torture.resume_cases import draw_frames, normals_case, splats_case  # noqa: E402  needs the path
from torture.rows import Row, judged  # noqa: E402  needs the path

video_loop, video_looks, normals_loop, normals_surface, normals_views, splats_loop, splats_looks = (
    import_module(f"fieldwatch.recon.pipelines.{name}")  # their packages export functions of these names
    for name in (
        *("video.algorithm", "video.evaluation", "normals.algorithm", "normals.surface"),
        *("normals.views", "splats.algorithm", "splats.evaluation"),
    )
)

AT = 11
PARTS = 2
MOST = 8
"""The step that runs out of memory, the number of parts from which it does not, and the number of attempts."""
MOST_LOOKS = 300
"""How many evaluations of a run may run out of memory: the number of parts doubles each time."""
EVALUATION_STATE = ("/state/evaluation_batches", "/state/validation")
"""Checkpoint items with the micro-batches of evaluations, which differ if an evaluation ran out of memory."""
LOOKED = "runs in parts; training unchanged"
MESHED = "runs in smaller blocks; the same surface"
HOPELESS = "evaluation always out of memory"
WANTED = "continues at the same step; bit-equal to the run with as many parts"


def run_out(*_: object, **__: object) -> None:
    """Raise the error of torch's allocator."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB (planted)")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A pipeline's training, and the function in which it runs out of memory.

    Attributes:
        name: name of the pipeline.
        train: function that trains in a folder.
        module: module of the function that fails.
        function: name of that function, which is called once per part.
    """

    name: str
    train: Callable[[Path], object]
    module: Any
    function: str

    @contextmanager
    def told(self, look: Callable[[int, Any], None]) -> Iterator[None]:
        """Pass the step and number of parts of every attempt to a function first."""
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
        """Run out of memory at one step, in the second call of the function, while there are too few parts."""
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
                torch.rand(7)  # as a step that has already drawn random numbers
                run_out()
            return result

        with self.told(look), patch.object(self.module, self.function, function):
            yield

    def chunked(self) -> AbstractContextManager[None]:
        """Use this number of parts from that step on, without running out of memory."""

        def look(step: int, parts: Any) -> None:
            parts.count = PARTS if step >= AT else parts.count

        return self.told(look)


def loops(folder: Path, only: Collection[str]) -> list[Loop]:
    """Return the loops of these pipelines."""
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
    """Return the loop of a video training."""
    config = video.VideoConfig(
        data=draw_frames(folder / "frames"),
        model="dual",  # it renders patches, so that a frame can be rendered in parts
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
    """Return the loop of the splats training, which renders images in bands."""
    return Loop(
        name="splats",
        train=splats_case(folder / "photos", streams=False).train,
        module=splats_loop,
        function="loss_terms",
    )


EVERY_LOOP = ("video", "normals", "splats")


def run_memory_faults(folder: Path, *, only: Collection[str] = EVERY_LOOP) -> list[Row]:
    """Run out of memory in training, evaluation and mesh extraction, and compare each run with its counterpart."""
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
    """Return the row of a trial, also if a training ended that should have continued."""
    try:
        return work(*given)
    except (RuntimeError, ValueError, ArithmeticError, MemoryError, OSError) as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        return judged(promise, what, wanted, "the training ended", good=False, why=why)


def trained(loop: Loop, folder: Path, *planted: AbstractContextManager[Any]) -> dict[str, Any]:
    """Train with or without faults; return the last checkpoint and the losses."""
    with ExitStack() as stack:
        for one in planted:
            stack.enter_context(one)
        loop.train(folder)
    return trained_state(folder)


def trained_state(folder: Path) -> dict[str, Any]:
    """Return the last checkpoint of a run, and its losses."""
    checkpoints = Checkpoints(folder / "checkpoints")
    return {"state": checkpoints.read(max(checkpoints.steps())), "losses": read_history(folder)["Loss/total"].values}


def differences(one: Any, other: Any, path: str = "", *, but: tuple[str, ...] = ()) -> list[str]:
    """Return the leaves that are not equal bit for bit, except the ignored ones."""
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
        same = one == other or repr(one) == repr(other)  # NaN does not equal itself
    return [] if same else [path]


def events(folder: Path, kind: str) -> list[Mapping[str, Any]]:
    """Return the events of a kind in a run."""
    return [event for event in read_events(folder) if event["kind"] == kind]


def alike(one: Any, other: Any) -> bool:
    """Return whether figures are equal up to the rounding of sums in another order."""
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-4))


def training(loop: Loop, place: Path) -> Row:
    """Test memory that runs out in the middle of a step."""
    failed = trained(loop, place / "failed", loop.failing())
    wrong = differences(failed, trained(loop, place / "chunked", loop.chunked()))
    told = events(place / "failed", "out_of_memory")
    good = not wrong and [event["step"] for event in told] == [AT]
    found = f"step {AT} repeated in {PARTS} parts, {len(failed['losses'])} steps equal" if good else f"{wrong[:3]}"
    return judged("P13", f"{loop.name}: training", WANTED, found, good=good)


def evaluation(loop: Loop, place: Path, plain: Mapping[str, Any]) -> Row:
    """Test memory that runs out while all views or frames are rendered at once."""
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
    found = f"in {told[-1]['after']} parts; figures and training unchanged" if good else f"{wrong[:3]} {told} {lost}"
    return judged("P13", f"{loop.name}: evaluation", LOOKED, found, good=good)


def hopeless(loop: Loop, place: Path, plain: Mapping[str, Any]) -> Row:
    """Test memory that runs out in every evaluation, whatever the number of parts."""
    failed = trained(loop, place / "hopeless", looks_fail(loop, always=True))
    wrong = differences(failed, plain, but=EVALUATION_STATE)
    lost = events(place / "hopeless", "validation_failed")
    good = bool(lost) and not wrong
    found = f"{len(lost)} failures recorded, training bit-equal" if good else f"{wrong[:3]}, {len(lost)} recorded"
    return judged("P14", f"{loop.name}: {HOPELESS}", "training bit-equal", found, good=good)


MEASURED = ("Eval/Frame/train_psnr", "Eval/mae", "Eval/mesh_faces", "Eval/mesh_vertices", "Test/psnr")
"""Return the figures that must not depend on the number of parts."""


@contextmanager
def looks_fail(loop: Loop, *, always: bool) -> Iterator[None]:
    """Run out of memory in most of the first evaluations, or in all of them until a run ends."""
    places = {
        "video": (video_looks, "render_frame"),
        "normals": (normals_views, "_blended"),
        "splats": (splats_looks, "_timed"),
    }
    module, name = places[loop.name]
    made = getattr(module, name)
    calls = [0]

    def drawn(*arguments: Any, **named: Any) -> object:
        torch.rand(7)  # as an evaluation that has already drawn random numbers
        calls[0] += 1
        if always and calls[0] > MOST_LOOKS:
            raise RuntimeError(f"{calls[0]} evaluations ran out of memory: the number of parts does not grow")
        return run_out() if always or calls[0] == 1 else made(*arguments, **named)

    with ExitStack() as stack:
        stack.enter_context(patch.object(module, name, drawn))
        if always and loop.name == "normals":  # the products after the loop evaluate again, which is not tested here
            stack.enter_context(patch.object(normals_loop, "write_products", lambda *_, **__: {}))
        yield


def mesh(loop: Loop, place: Path, plain: Mapping[str, Any]) -> Row:
    """Test memory that runs out in a block of the mesh."""
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
    found = f"in blocks of 16, {figures[0][-1]:.0f} faces, unchanged" if good else f"{wrong[:3]} {figures} {lost}"
    return judged("P13", "normals: mesh extraction", MESHED, found, good=good)


def main() -> int:
    """Run all cases, and print a line for each."""
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
