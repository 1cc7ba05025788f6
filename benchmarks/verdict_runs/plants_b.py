"""Plants of set b: rules may be tuned on them."""

import dataclasses
import re
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Terms

from . import edits, games, scenes, tasks_b
from .cases import Plant, Train
from .commands import NORMALS, SPLATS, VIDEO, Command, last_value, worst_view
from .planting import Loop, game_plant
from .supervised import Parts

STRIPES = Loop(task=tasks_b.stripes, good=85.0)
PAIRS = Loop(task=tasks_b.pairs, good=-0.75)
SIGNALS = Loop(task=tasks_b.signals, good=-0.01)
STAR = Loop(task=tasks_b.star_field, good=-0.05)
HOUSES = Loop(task=tasks_b.houses, good=0.7)
UNFREEZING = Loop(task=tasks_b.unfreezing, good=85.0)
POINTING = Loop(task=tasks_b.pointing, good=-0.3)


def new_decoder(parts: Parts) -> None:
    """Replace the decoder after the optimizer was made."""
    assert isinstance(parts.model, tasks_b.SignalModel)  # noqa: S101  the autoencoder of signals
    parts.model.decoder = tasks_b.SignalModel().decoder
    parts.groups = {"encoder": parts.model.encoder, "decoder": parts.model.decoder}


def head_only(parts: Parts) -> None:
    """Give the optimizer the last layer only."""
    assert isinstance(parts.model, nn.Sequential)  # noqa: S101  the distance field
    parts.optimizer = torch.optim.Adam(parts.model[-1].parameters(), lr=3e-3)
    parts.schedule = None


def wrong_softmax(parts: Parts) -> None:
    """Normalize the logits over the batch instead of the classes, twice."""
    model = parts.model
    parts.terms = lambda x, y: Terms(
        loss=(1.0, functional.cross_entropy(model(x).softmax(dim=0).mul(1e-4).softmax(dim=0), y))
    )


def constant_input(parts: Parts) -> None:
    """Overwrite the features with those of the first house."""
    parts.inputs = parts.inputs[:1].repeat(len(parts.inputs), 1)


def root_of_zero(parts: Parts, x: Tensor, _: Tensor) -> Tensor:
    """Return a term whose square root has an infinite slope where two predictions are equal."""
    made = parts.model(x)
    return (made - made.detach()).square().sum(dim=1).sqrt().mean()


def normalized_rows(parts: Parts) -> None:
    """Divide every signal by its spread, which is zero for a constant one."""
    terms = parts.terms
    losses = parts.sample_loss
    parts.inputs[31] = 0.25

    def divided(x: Tensor) -> Tensor:
        return (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)

    parts.terms = lambda x, y: terms(divided(x), y)
    if losses is not None:
        parts.sample_loss = lambda x, y: losses(divided(x), y)


def two_parts(parts: Parts) -> None:
    """Give the inside of the star a term of its own."""
    model = parts.model

    def terms(x: Tensor, y: Tensor) -> Terms:
        error = (model(x).squeeze(-1) - y).abs()
        return Terms(outside=(1.0, error[y > 0].mean()), inside=(2.0, error[y <= 0].mean()))

    parts.terms = terms


def pulled(parts: Parts, x: Tensor, _: Tensor) -> Tensor:
    """Return a term that pulls the prediction to zero."""
    return parts.model(x).square().mean()


def new_optimizer_after(stop: int) -> edits.Edit:
    """Make a new optimizer after the tracked one was restored."""

    def edit(parts: Parts) -> None:
        parts.tracked = {"model": parts.model, "optimizer": parts.optimizer}

        def renew(step: int) -> None:
            if step == stop:
                parts.optimizer = torch.optim.Adam(parts.model.parameters(), lr=4e-3)

        parts.before.insert(0, renew)

    return edit


def training_accuracy(parts: Parts) -> None:
    """Evaluate the training samples as well."""
    measure = parts.measure
    parts.measure = lambda: {
        **measure(),
        "train/accuracy": tasks_b.hits(parts.model, parts.inputs, parts.targets),
    }


NAMED = dataclasses.replace(HOUSES, also=(edits.figure_of_samples,), good=-150.0, names=("house 211",))

LOOPS = (
    PAIRS.plant("pairs targets shuffled", "targets shuffled", edits.shuffle_targets),
    POINTING.varied("pointing sign of advantages", "targets shuffled", partial(tasks_b.pointing, sign=-1.0)),
    PAIRS.rated("pairs rate x300", "rate too high", 1.2, sound=4e-3),
    STAR.rated("star rate x200", "rate too high", 0.6, sound=3e-3),
    STRIPES.rated("stripes rate / 5000", "rate too low", 1e-5, sound=0.05),
    NAMED.plant("houses one wrong price", "wrong sample", edits.spoil_sample(211, lambda y: y + 400)),
    STRIPES.plant("stripes same batch", "same batch", edits.same_batch),
    HOUSES.plant("houses constant features", "input not used", constant_input),
    STRIPES.plant("stripes softmax over the batch", "chance level", wrong_softmax),
    SIGNALS.plant("signals kl x5000", "regularizer too strong", edits.weigh_term("kl", 1.0)),
    dataclasses.replace(HOUSES, also=(edits.add_term("pull", 1e-4, pulled),)).plant(
        "houses pull x20000", "regularizer too strong", edits.weigh_term("pull", 2.0)
    ),
    dataclasses.replace(STAR, also=(two_parts,)).plant(
        "star outside detached", "detached term", edits.detach_term("outside")
    ),
    STRIPES.left_in_evaluation("stripes eval mode left on"),
    PAIRS.evaluated_in_training("pairs dropout in evaluation"),
    SIGNALS.reseeding("signals evaluation reseeds", seed=42, every=5),
    PAIRS.drawing("pairs evaluation draws"),
    SIGNALS.plant("signals decoder replaced", "layer replaced", new_decoder),
    STAR.plant("star optimizer with head only", "parameter missed", head_only),
    SIGNALS.plant(
        "signals decoder frozen",
        "frozen by accident",
        edits.from_step(10, edits.freeze(lambda model: model.get_submodule("decoder"))),
    ),
    STRIPES.plant("stripes never zeroed", "gradients never zeroed", edits.never_zeroed),
    dataclasses.replace(PAIRS, repair=(edits.autocast_half(2.0**20, 1e-6),)).plant(
        "pairs float16 without scaling", "no loss scaling", edits.autocast_half(1.0, 1e-6)
    ),
    HOUSES.plant("houses float16 weights", "half weights", edits.half_weights),
    STAR.plant("star square root of zero", "not finite", edits.add_term("stay", 0.01, root_of_zero)),
    dataclasses.replace(SIGNALS, names=("signal-31",), repair=()).plant(
        "signals divided by zero", "not finite", normalized_rows
    ),
    Loop(task=tasks_b.iterated_stripes, good=60.0).plant(
        "stripes iterated without clipping", "gradients explode", edits.without_clip
    ),
    Loop(task=tasks_b.deep_stripes, good=60.0).varied(
        "stripes deep tanh", "gradients vanish", partial(tasks_b.deep_stripes, activation=nn.Tanh, gain=0.12)
    ),
    dataclasses.replace(STRIPES, also=(training_accuracy,)).plant(
        "stripes of thirty pictures", "overfits", edits.few_samples(30), edits.random_draw
    ),
    PAIRS.plant("pairs of sixteen sequences", "overfits", edits.few_samples(16)),
    dataclasses.replace(STAR, good=-20.0).leaking("star keeps tensors", 200_000),
    HOUSES.plant("houses dead units", "dead units", edits.dead_biases),
    HOUSES.plant("houses diverges late", "diverges late", edits.rate_grows(400, 1.04)),
    HOUSES.plant("houses rate jumps", "rate jumps", edits.rate_jumps(450, 500.0)),
    SIGNALS.fresh_optimizer("signals new optimizer after resume", 500, new_optimizer_after(500)),
    game_plant("corners constant latent", "mode collapse", tasks_b.corner_game, games.constant_latent, good=0.75),
    game_plant("corners critic / 500", "mode collapse", tasks_b.corner_game, games.critic_rate(2e-3), good=0.75),
)

PLUSH = Command(
    pipeline="splats",
    words=f"{SPLATS} --schedule-scale 0.06 --regularization none --longer-side 96 --growth none",
    write=scenes.plush_scene,
    good=18.0,
)
GROWN = dataclasses.replace(
    PLUSH,
    words=f"{SPLATS} --schedule-scale 0.06 --regularization none --longer-side 96 --growth-pull 1e-3 --growth-cap 9000",
    good=15.0,
)
PLUSH_VIEWS = dataclasses.replace(PLUSH, figure=worst_view, good=-1.7)
SURFACE = "--regularization planar --surface-from 4000 --growth-until 4000 --depth-normal-from 4000"
OBJECT = Command(
    pipeline="normals",
    words=f"{NORMALS} --steps 260 --hidden 24",
    write=scenes.built_in_normals(8, 28),
    good=-8.0,
)
WAVES = Command(pipeline="video", words=f"{VIDEO} --epochs 50", write=scenes.wave_frames(24), good=24.0)


def advised_axes(advice: str) -> Train:
    """Read the normals as the remedy says; only their files can be repaired if it names none."""
    named = re.search(r"--axes (opengl|opencv|auto)", advice)
    if named is None:
        return OBJECT.train()
    return OBJECT.train(scenes.flip_axes(1.0, -1.0, 1.0), more=f"--axes {named.group(1)}")


PIPELINES = (
    PLUSH_VIEWS.spoilt(
        "plush two cameras swapped",
        "wrong sample",
        scenes.swap_names(3, 17),
        names=scenes.plush_names(3, 17),
    ),
    PLUSH_VIEWS.spoilt(
        "plush one camera turned", "wrong sample", scenes.turn_pose(10, 70.0), names=scenes.plush_names(10)
    ),
    PLUSH.spoilt("plush focal length halved", "focal length", scenes.scale_focal(0.5)),
    PLUSH.spoilt("plush poses shuffled", "poses shuffled", scenes.shuffle_poses(2)),
    PLUSH_VIEWS.spoilt(
        "plush one camera far away", "wrong sample", scenes.move_far(6, 1e6), names=scenes.plush_names(6)
    ),
    PLUSH.flagged("plush rate of scales x200", "rate too high", "--lr-scales 1.0"),
    GROWN.flagged("plush resets every 200", "resets too often", "--reset-every 200"),
    GROWN.flagged("plush prunes below .8", "prunes too much", "--least-opacity 0.8"),
    dataclasses.replace(
        PLUSH, words=f"{SPLATS} --schedule-scale 0.06 --longer-side 96 --growth none {SURFACE}"
    ).flagged("plush depth normals x500", "regularizer too strong", "--depth-normal-weight 25"),
    OBJECT.spoilt("object axis y flipped", "wrong axes", scenes.flip_axes(1.0, -1.0, 1.0), repaired=advised_axes),
    OBJECT.spoilt("object x and y exchanged", "wrong axes", scenes.swap_axes),
    OBJECT.spoilt("object one view of another", "wrong sample", scenes.replace_normals(5, 1), names=("005", "5")),
    OBJECT.spoilt(
        "object cameras shuffled", "poses shuffled", scenes.change_cameras(lambda n: [*range(3, n), *range(3)])
    ),
    OBJECT.spoilt("object focal length x1.6", "focal length", scenes.scale_cameras(-1, 1.6)),
    OBJECT.flagged("object rate x500", "rate too high", "--lr 0.5"),
    OBJECT.flagged("object rate / 10000", "rate too low", "--lr 1e-7"),
    OBJECT.flagged("object mask x1000", "regularizer too strong", '--stages "fit@0 normal=1 mask=1000 eikonal=0.1"'),
    WAVES.spoilt("waves frames shuffled", "targets shuffled", scenes.shuffle_frames(4)),
    dataclasses.replace(WAVES, figure=last_value("Eval/PSNR_Stats/train_min"), good=20.0).spoilt(
        "waves one frame noise", "wrong sample", scenes.change_frame(13, scenes.noise_like), names=("13",)
    ),
    WAVES.flagged("waves rate x300", "rate too high", "--lr 3"),
    WAVES.flagged("waves rate / 3000", "rate too low", "--lr 3e-6"),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)
