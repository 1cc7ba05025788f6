"""Plants of set a: rules may be tuned on them."""

import dataclasses
import re
from functools import partial

import torch
from torch import Tensor, nn

from . import edits, games, scenes, tasks_a
from .cases import Plant, Train
from .commands import NORMALS, SPLATS, VIDEO, Command, last_value, spot_normals, worst_view
from .planting import Loop, game_plant
from .resumed import untracked_optimizer
from .supervised import Parts

BLOBS = Loop(task=tasks_a.blobs, good=0.85)
SYMBOLS = Loop(task=tasks_a.symbols, good=-1.1)
SPOTS = Loop(task=tasks_a.spots, good=24.0)
IMAGE = Loop(task=tasks_a.image_field, good=30.0)
FROZEN = Loop(task=tasks_a.frozen_backbone, good=0.9)
WALK = Loop(task=tasks_a.grid_walk, good=0.3)


def replace_decoder_head(parts: Parts) -> None:
    """Replace the last layer of the decoder after the optimizer was made."""
    decoder = parts.model.get_submodule("1")
    assert isinstance(decoder, nn.Sequential)  # noqa: S101  the autoencoder of the spots
    decoder[2] = nn.Linear(64, 100)


def decoder_only(parts: Parts) -> None:
    """Give the optimizer the decoder's parameters only."""
    parts.optimizer = torch.optim.Adam(parts.model.get_submodule("1").parameters(), lr=3e-3)
    parts.schedule = None


def log_of_zero(parts: Parts, x: Tensor, _: Tensor) -> Tensor:
    """Return a term with the logarithm of clipped pixels, which is infinite at the dark ones."""
    return -(parts.model(x) - 0.5).relu().sum(dim=1).log().mean()


def flatness(parts: Parts, x: Tensor, _: Tensor) -> Tensor:
    """Return a term that penalizes any contrast of the picture."""
    return parts.model(x).var(dim=0).sum()


def clamped(parts: Parts) -> None:
    """Clamp the logits to a range in which they mean nothing."""
    layer = nn.Hardtanh(0.0, 1e-3)
    assert isinstance(parts.model, nn.Sequential)  # noqa: S101  the classifier of the blobs
    parts.model.append(layer)


def two_colors(parts: Parts) -> None:
    """Give the blue channel of the picture a term of its own."""
    model = parts.model

    def terms(x: Tensor, y: Tensor) -> tasks_a.Terms:
        error = (model(x) - y).square().mean(dim=0)
        return tasks_a.Terms(red_green=(1.0, error[:2].mean()), blue=(0.5, error[2]))

    parts.terms = terms


def record_training_accuracy(parts: Parts) -> None:
    """Evaluate the training samples as well."""
    measure = parts.measure

    def both() -> dict[str, float]:
        return {**measure(), "Eval/accuracy_train": tasks_a.accuracy(parts.model, parts.inputs, parts.targets)}

    parts.measure = both


SAMPLES = dataclasses.replace(SPOTS, also=(edits.figure_of_samples,), good=-11.0, names=("spot_017",))

LOOPS = (
    BLOBS.plant("blobs targets shuffled", "targets shuffled", edits.shuffle_targets),
    WALK.varied("grid walk sign of advantages", "targets shuffled", partial(tasks_a.grid_walk, sign=-1.0)),
    BLOBS.rated("blobs rate x1000", "rate too high", 3.0, sound=3e-3),
    IMAGE.rated("image rate x100", "rate too high", 0.2, sound=2e-3),
    SYMBOLS.rated("symbols rate / 1000", "rate too low", 5e-6, sound=5e-3),
    SAMPLES.plant("spots one wrong target", "wrong sample", edits.spoil_sample(17, lambda y: 0.8 * torch.rand_like(y))),
    SYMBOLS.plant("symbols same batch", "same batch", edits.same_batch),
    BLOBS.plant("blobs blank inputs", "input not used", edits.blank_inputs),
    BLOBS.plant("blobs logits clamped", "chance level", clamped),
    dataclasses.replace(IMAGE, also=(edits.add_term("flatness", 1e-4, flatness),)).plant(
        "image flatness x10000", "regularizer too strong", edits.weigh_term("flatness", 1.0)
    ),
    WALK.plant("grid walk entropy x1000", "regularizer too strong", edits.weigh_term("entropy", 10.0)),
    dataclasses.replace(IMAGE, also=(two_colors,)).plant(
        "image blue term detached", "detached term", edits.detach_term("blue")
    ),
    BLOBS.left_in_evaluation("blobs eval mode left on"),
    BLOBS.evaluated_in_training("blobs dropout in evaluation"),
    BLOBS.reseeding("blobs evaluation reseeds", seed=0, every=10),
    IMAGE.drawing("image evaluation draws"),
    SPOTS.plant("spots head replaced", "layer replaced", replace_decoder_head),
    SPOTS.plant("spots encoder not in optimizer", "parameter missed", decoder_only),
    SYMBOLS.plant("symbols head frozen", "frozen by accident", edits.freeze(lambda model: model.get_submodule("head"))),
    FROZEN.plant("frozen backbone never zeroed", "gradients never zeroed", edits.never_zeroed),
    dataclasses.replace(BLOBS, repair=(edits.autocast_half(65536.0, 1e-5),)).plant(
        "blobs float16 without scaling", "no loss scaling", edits.autocast_half(1.0, 1e-5)
    ),
    BLOBS.plant("blobs float16 weights", "half weights", edits.half_weights),
    IMAGE.plant("image logarithm of zero", "not finite", edits.add_term("log_contrast", 0.01, log_of_zero)),
    dataclasses.replace(SPOTS, names=("spot_040",)).plant(
        "spots one input Inf", "not finite", edits.spoil_input(40, lambda x: x / 0)
    ),
    Loop(task=partial(tasks_a.marked_sums, gain=1.5), good=-0.09).plant(
        "sums without clipping", "gradients explode", edits.without_clip
    ),
    Loop(task=tasks_a.deep_blobs, good=0.8).varied(
        "blobs deep sigmoid", "gradients vanish", partial(tasks_a.deep_blobs, activation=nn.Sigmoid)
    ),
    dataclasses.replace(BLOBS, also=(record_training_accuracy,), good=0.9).plant(
        "blobs of fifteen samples", "overfits", edits.few_samples(15)
    ),
    SYMBOLS.plant("symbols of 24 sequences", "overfits", edits.few_samples(24)),
    dataclasses.replace(IMAGE, good=-20.0).leaking("image keeps graphs", 120_000),
    IMAGE.plant("image dead units", "dead units", edits.dead_biases),
    SYMBOLS.plant("symbols diverges late", "diverges late", edits.rate_grows(250, 1.06)),
    SPOTS.plant("spots rate jumps", "rate jumps", edits.rate_jumps(500, 300.0)),
    SPOTS.fresh_optimizer("spots optimizer not tracked", 400, untracked_optimizer),
    game_plant("ring constant latent", "mode collapse", tasks_a.ring_game, games.constant_latent, good=0.6),
    game_plant("ring critic hardly learns", "mode collapse", tasks_a.ring_game, games.critic_rate(1e-3), good=0.6),
)

SOLID = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 2000 --schedule-scale 0.05 --regularization none",
    write=scenes.solid_scene(16, 48, 400),
    good=20.0,
)
SURFACE = "--regularization planar --surface-from 3000 --growth-until 3000 --depth-normal-from 3000"
SOLID_VIEWS = dataclasses.replace(SOLID, figure=worst_view, good=-2.5)
SPOT = Command(pipeline="normals", words=f"{NORMALS} --steps 300", write=spot_normals(6, 32), good=-9.0)
BUNNY = Command(pipeline="video", words=f"{VIDEO} --epochs 60", write=scenes.bunny_frames(16, (64, 32)), good=24.0)


def advised_axes(advice: str) -> Train:
    """Read the normals as the remedy says."""
    named = re.search(r"--axes (opengl|opencv|auto)", advice)
    spoilt = f" --axes {named.group(1)}" if named else ""
    return SPOT.train(scenes.flip_axes(1.0, -1.0, -1.0), more=spoilt)


PIPELINES = (
    SOLID_VIEWS.spoilt(
        "solid two cameras swapped", "wrong sample", scenes.swap_names(5, 9), names=("view_005", "view_009")
    ),
    SOLID_VIEWS.spoilt(
        "solid photo overexposed", "wrong sample", scenes.change_photo(6, lambda p: 2.5 * p + 0.3), names=("view_006",)
    ),
    SOLID.spoilt("solid focal length doubled", "focal length", scenes.scale_focal(2.0)),
    SOLID.spoilt("solid poses shuffled", "poses shuffled", scenes.shuffle_poses(1)),
    SOLID.flagged("solid rates x100", "rate too high", "--lr-factor 100"),
    SOLID.flagged("solid resets every 100", "resets too often", "--reset-every 100"),
    SOLID.flagged("solid prunes below .9", "prunes too much", "--least-opacity 0.9"),
    dataclasses.replace(SOLID, words=f"{SPLATS} --growth-cap 2000 --schedule-scale 0.05 {SURFACE}").flagged(
        "solid depth normals x1000", "regularizer too strong", "--depth-normal-weight 50"
    ),
    dataclasses.replace(
        SPOT.spoilt("spot wrong axes", "wrong axes", scenes.flip_axes(1.0, -1.0, -1.0), repaired=advised_axes),
        ideal="--axes opencv",
    ),
    SPOT.spoilt("spot masks swapped", "wrong sample", scenes.swap_masks(1, 3), names=("001", "003")),
    SPOT.spoilt("spot one view turned", "wrong sample", scenes.replace_normals(2, 2), names=("002",)),
    SPOT.spoilt("spot cameras shuffled", "poses shuffled", scenes.change_cameras(lambda n: [*range(1, n), 0])),
    SPOT.flagged("spot rate x1000", "rate too high", "--lr 1"),
    SPOT.flagged("spot eikonal x1000", "regularizer too strong", '--stages "fit@0 normal=1 mask=1 eikonal=100"'),
    BUNNY.spoilt("bunny frames shuffled", "targets shuffled", scenes.shuffle_frames(1)),
    dataclasses.replace(BUNNY, figure=last_value("Eval/PSNR_Stats/train_min"), good=23.0).spoilt(
        "bunny one frame noise", "wrong sample", scenes.change_frame(9, scenes.noise_like), names=("9",)
    ),
    BUNNY.flagged("bunny rate x100", "rate too high", "--lr 1"),
    BUNNY.flagged("bunny rate / 10000", "rate too low", "--lr 1e-6"),
    BUNNY.flagged("bunny clip loss x10000", "regularizer too strong", "--clip-loss-weight 200"),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)
