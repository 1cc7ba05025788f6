"""Plants of set c."""

import dataclasses
import re

import numpy as np

from verdict_runs import scenes
from verdict_runs.cases import Fault, Plant, Train
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, last_value, worst_view
from verdict_runs.faults import (
    ABSURD,
    DEAD,
    FRESH,
    GRADIENTS,
    JUMP,
    LEAK,
    MODES,
    MOVED,
    NOT_FINITE,
    NOTHING,
    OVERFIT,
    PRECISION,
    RATE,
    SAMPLE,
    UNINFORMED,
    WORSE,
)
from verdict_runs.scripts import Fix, Named, Script

from . import agents, data, generative, pictures, sequences, tables

Array = np.ndarray

DATA = r"target|label|truth|pair|align|shift|order|shuffl|data|mapping"
STUCK = rf"{UNINFORMED}|chance|plateau|stuck|not (fall|learn|improv|decreas)|no progress|NoProgress|constant"
GAP = r"gap|overfit|overtrain|held.?out|validation|generali[sz]|train(ing)? (metric|figure|accuracy|value)"
BACKWARD = rf"{UNINFORMED}|sign|worse|declin|fell"
SHARE = r"TermDominates|dominat|share of the (total|loss|gradient)"
COLLAPSE = r"collaps|unused|never (chosen|used|selected)|dead|DeadGroup|no gradient|zero gradient|diversity|degenerat"
BROKEN_RATE = rf"{RATE}|diverg|explod|overflow|NonFinite|not finite|\bInf\b|\bNaN\b|UpdateRatio|update ratio"

REVERSAL = Script(program=sequences.reversal, good=0.9)
TAGGING = Script(program=sequences.tagging, good=0.85)
FORECAST = Script(program=sequences.forecast, good=0.9)
GLYPHS = Script(program=pictures.classify, good=0.85)
CELLS = Script(program=pictures.segment, good=0.7)
PHOTO = Script(program=pictures.sine_photo, good=22.0)
CONTRAST = Script(program=pictures.contrast, good=0.85)
SALES = Script(program=tables.table, good=0.75)
SPECTRUM = Script(program=tables.spectrum, good=5.0)
OFFERS = Script(program=tables.rank, good=0.6)
GRAPH = Script(program=tables.communities, good=0.8)
EXPERTS = Script(program=tables.experts, good=0.35)
DENSITY = Script(program=tables.density, good=0.4)
BARS = Script(program=generative.bernoulli_vae, good=0.8)
CODES = Script(program=generative.codebook, good=-0.08)
MOONS = Script(program=generative.flow, good=0.2)
ISLANDS = Script(program=generative.diffusion, good=0.65)
PLACES = Script(program=generative.critic, good=0.8)
CART = Script(program=agents.steer, good=-2.0)
CORRIDOR = Script(program=agents.corridor, good=0.85)
STUDENT = Script(program=agents.distill, good=0.7)
ADAPTERS = Script(program=agents.adapt, good=0.7)


def wrong_sample(*names: str) -> Named:
    """Return the fault of one sample that is wrong."""
    words = r"sample|row|slide|picture|label|target|mask|exclude|inspect|look at|check"
    return Named(kind=SAMPLE, cause=r"sample|row|slide|outlier|spike", fixes=(Fix(words=words),), names=names)


LOOPS: tuple[Plant, ...] = (
    # Worse than doing nothing
    REVERSAL.plant(
        "reversal targets one letter off",
        Named(kind=WORSE, cause=rf"{UNINFORMED}|{GAP}|target|label", fixes=(Fix(words=DATA),)),
        shift=1,
    ),
    CONTRAST.plant(
        "contrast views of other glyphs",
        Named(
            kind=WORSE, cause=rf"{STUCK}|{GAP}|pair|target", fixes=(Fix(words=rf"{DATA}|positive|view|batch|input"),)
        ),
        paired=False,
    ),
    OFFERS.plant(
        "offers ranked backward",
        Named(kind=WORSE, cause=rf"{BACKWARD}|invert", fixes=(Fix(words=rf"{DATA}|sign|loss"),)),
        sign=-1.0,
    ),
    CART.plant(
        "cart advantages with the wrong sign",
        Named(
            kind=WORSE,
            cause=rf"{BACKWARD}|return",
            fixes=(Fix(words=rf"{DATA}|sign|advantage|reward|loss"),),
        ),
        sign=-1.0,
    ),
    FORECAST.plant(
        "forecast evaluation not scaled",
        Named(
            kind=WORSE,
            cause=rf"{UNINFORMED}|{GAP}|scal|normali[sz]|evaluation",
            fixes=(Fix(words=r"scal|normali[sz]|preprocess|same (data|transform|input)|evaluat|held.?out|validation"),),
        ),
        scaled_evaluation=False,
    ),
    GLYPHS.plant(
        "glyphs evaluated as bytes",
        Named(
            kind=WORSE,
            cause=rf"{UNINFORMED}|{GAP}|scal|normali[sz]|evaluation",
            fixes=(Fix(words=r"scal|normali[sz]|preprocess|same (data|transform|input)|evaluat|held.?out|validation"),),
        ),
        raw_evaluation=True,
    ),
    SALES.plant(
        "sales target among the columns",
        Named(
            kind=WORSE,
            cause=rf"{GAP}|leak|{UNINFORMED}",
            fixes=(Fix(words=r"leak|column|feature|input|split|data|distribution|differ"),),
        ),
        leaks=True,
    ),
    STUDENT.plant(
        "student of an untrained teacher",
        Named(kind=WORSE, cause=STUCK, fixes=(Fix(words=rf"{DATA}|teacher|checkpoint|input"),)),
        teacher_steps=0,
    ),
    ISLANDS.plant(
        "islands noise for points",
        Named(kind=WORSE, cause=rf"{STUCK}|target|evaluation", fixes=(Fix(words=rf"{DATA}|sampl|evaluat|loss"),)),
        target="noise",
    ),
    GLYPHS.plant(
        "glyphs two classes mislabeled",
        Named(
            kind=WORSE,
            cause=rf"{GAP}|label|class|{UNINFORMED}",
            fixes=(Fix(words=r"label|class|target|data"),),
        ),
        mislabeled=True,
    ),
    # One sample is wrong
    Script(program=pictures.segment, good=-15.0, settings={"worst": True, "total": 200}).plant(
        "cells one mask inverted", wrong_sample("slide-23.tif"), inverted=23
    ),
    Script(program=tables.table, good=-400.0, settings={"worst": True}).plant(
        "sales one row of ninety", wrong_sample("row 417"), wrong_row=417
    ),
    # Absurd settings
    REVERSAL.plant(
        "reversal rate x1000",
        Named(
            kind=ABSURD,
            cause=rf"{RATE}|UpdateRatio|update ratio|diverg",
            fixes=(Fix(words=RATE, rate="rate"),),
        ),
        rate=3.0,
    ),
    CELLS.plant(
        "cells rate x400",
        Named(
            kind=ABSURD,
            cause=rf"{BROKEN_RATE}|dead",
            fixes=(Fix(words=RATE, rate="rate"),),
        ),
        rate=20.0,
    ),
    PHOTO.plant(
        "photo rate / 2000",
        Named(
            kind=ABSURD,
            cause=rf"{RATE}|UpdateRatio|update ratio|Unchanged|too (low|small)|slow",
            fixes=(Fix(words=RATE, rate="rate"),),
        ),
        rate=1e-6,
    ),
    GLYPHS.plant(
        "glyphs schedule of epochs at every batch",
        Named(
            kind=ABSURD,
            cause=rf"{RATE}|schedule|UpdateRatio|Unchanged",
            fixes=(Fix(words=rf"{RATE}|schedul|epoch"),),
        ),
        per_batch=True,
        rate=0.02,
    ),
    GLYPHS.plant(
        "glyphs weight decay of ten",
        Named(
            kind=ABSURD,
            cause=rf"decay|weights? (fell|go)|norm of (the )?(parameters|weights)|{STUCK}|vanish|shr[aiu]nk",
            fixes=(
                Fix(words=r"decay"),
                Fix(words=r"regulari[sz]"),
                Fix(words=RATE, settings={"rate": 5e-3}, rate="rate"),
            ),
        ),
        decay=10.0,
    ),
    GLYPHS.plant(
        "glyphs clipped at a millionth",
        Named(
            kind=ABSURD,
            cause=rf"clip|UpdateRatio|update ratio|Unchanged|updates? (are|is) (too )?small|{RATE}",
            fixes=(Fix(words=r"clip"), Fix(words=RATE, settings={"rate": 0.5}, rate="rate")),
        ),
        clip=1e-6,
    ),
    CELLS.plant(
        "cells losses summed",
        Named(
            kind=ABSURD,
            cause=rf"{BROKEN_RATE}|sum|mean|scale of the loss|dominat|dead",
            fixes=(
                Fix(words=r"\bsum(med)?\b|\bmean\b|averag|reduction"),
                Fix(words=RATE, settings={"rate": 5e-4}, rate="rate"),
                Fix(words=r"clip|loss"),
            ),
        ),
        total_loss=True,
    ),
    PHOTO.plant(
        "photo smoothness x100000",
        Named(
            kind=ABSURD,
            cause=r"TermDominates|dominat|smooth|share of the (total|loss|gradient)",
            fixes=(Fix(words=r"weight|smooth"),),
        ),
        smooth=10.0,
    ),
    PHOTO.plant(
        "photo colors detached",
        Named(
            kind=ABSURD,
            cause=r"detach|no gradient|without (a )?gradient|color",
            fixes=(Fix(words=r"detach|no_grad|item\(\)|gradient"),),
        ),
        cut=True,
    ),
    BARS.plant(
        "bars divergence x200",
        Named(
            kind=ABSURD,
            cause=rf"TermDominates|dominat|divergence|{COLLAPSE}|share of the (total|loss|gradient)",
            fixes=(Fix(words=r"weight|divergence|anneal|warm|\bbeta\b|\bKL\b"),),
        ),
        beta=60.0,
    ),
    CART.plant(
        "cart rewards x10000",
        Named(
            kind=ABSURD,
            cause=rf"{SHARE}|critic|scale|reward|clip|explod|{UNINFORMED}",
            fixes=(
                Fix(words=r"reward|scale|normali[sz]"),
                Fix(words=r"weight", settings={"shared_weight": 1e-9}),
                Fix(words=r"clip", settings={"clip": None}),
            ),
        ),
        scale=1e4,
    ),
    # Learns nothing
    REVERSAL.plant(
        "reversal without positions",
        Named(
            kind=NOTHING,
            cause=rf"{STUCK}|position|input|capacity",
            fixes=(Fix(words=r"position|encoding|input|feature|information|model|architecture"),),
        ),
        positions=False,
    ),
    CELLS.plant(
        "cells softmax over the batch",
        Named(
            kind=NOTHING,
            cause=rf"{STUCK}|softmax|axis|saturat|{GAP}",
            fixes=(Fix(words=r"softmax|axis|dim|logit|loss|output|input|target|label"),),
        ),
        axis=0,
    ),
    GLYPHS.plant(
        "glyphs sorted by class",
        Named(
            kind=NOTHING,
            cause=rf"shuffl|order|sorted|class|forget|oscillat|{GAP}|{STUCK}|periodic|same (batch|sample)",
            fixes=(Fix(words=r"shuffl|order|sampl|batch|loader"),),
        ),
        is_sorted=True,
    ),
    GLYPHS.plant(
        "glyphs seed reset at each epoch",
        Named(
            kind=NOTHING,
            cause=rf"same (batch|sample|view|order)|repeat|never (drawn|seen|visited)|distinct|seed|random|{GAP}",
            fixes=(Fix(words=r"batch|shuffl|sampler|loader|order|seed|more (data|samples)|generator"),),
        ),
        same_seed=True,
        epochs=8,
    ),
    TAGGING.plant(
        "tagging counts padding",
        Named(
            kind=NOTHING,
            cause=rf"padding|mask|ignore|{STUCK}|imbalanc|majority|{GAP}",
            fixes=(Fix(words=r"padding|mask|ignore|target|label|loss|balanc"),),
        ),
        padding_counts=True,
        rate=0.05,
    ),
    SALES.plant(
        "sales column in other units",
        Named(
            kind=NOTHING,
            cause=rf"{STUCK}|scale|input|normali[sz]|standardi[sz]|column|units|explod|GradientExploding|large|magnitude|spike",
            fixes=(Fix(words=r"scale|input|normali[sz]|standardi[sz]|column|units|feature|data"),),
        ),
        huge=True,
    ),
    # Something else moves the training
    Script(program=sequences.reversal, good=1.0, settings={"dropout": 0.05, "watched": "mode", "total": 120}).plant(
        "reversal stays in eval mode",
        Named(
            kind=MOVED,
            cause=r"eval(uation)? mode|train(ing)? mode|\.training|dropout",
            fixes=(Fix(words=r"\.train\(\)|run\.evaluation|train(ing)? mode"),),
        ),
        stays_in_eval=True,
    ),
    Script(program=pictures.classify, good=0.93).plant(
        "glyphs evaluated in train mode",
        Named(
            kind=MOVED,
            cause=r"eval(uation)? mode|train(ing)? mode|\.training|batch.?norm|running",
            fixes=(Fix(words=r"\.eval\(\)|run\.evaluation|eval(uation)? mode"),),
        ),
        mode="train",
    ),
    REVERSAL.plant(
        "reversal layers renewed",
        Named(
            kind=MOVED,
            cause=r"optimizer|not (held|updated|stepped)|Unchanged|never (changes|updated)",
            fixes=(Fix(words=r"optimizer"),),
        ),
        renewed=True,
        total=160,
    ),
    SALES.plant(
        "sales body replaced",
        Named(
            kind=MOVED,
            cause=r"optimizer|not (held|updated|stepped)|Unchanged|never (changes|updated)",
            fixes=(Fix(words=r"optimizer"),),
        ),
        renewed=True,
    ),
    REVERSAL.plant(
        "reversal encoding detached",
        Named(
            kind=MOVED,
            cause=r"detach|no gradient|zero gradient|DeadGroup|Unchanged|not in the graph|never receive|encoder",
            fixes=(Fix(words=r"detach|no_grad|graph|gradient|contributes|\.data\b"),),
        ),
        cut=True,
    ),
    SALES.plant(
        "sales body frozen at once",
        Named(
            kind=MOVED,
            cause=r"requires_grad|frozen|freez|DeadGroup|no (longer )?gradient|Unchanged",
            fixes=(Fix(words=r"requires_grad|froze|freez|detach|no_grad|contributes|optimizer"),),
        ),
        frozen_from=8,
    ),
    SALES.plant(
        "sales gradients never cleared",
        Named(
            kind=MOVED,
            cause=r"accumulat|zero_grad|never (zeroed|cleared)|not cleared|Uncleared|earlier steps",
            fixes=(Fix(words=r"zero_grad|step\.backward|clear"),),
        ),
        clears=False,
    ),
    GRAPH.plant(
        "graph gradients never cleared",
        Named(
            kind=MOVED,
            cause=r"accumulat|zero_grad|never (zeroed|cleared)|not cleared|Uncleared|earlier steps",
            fixes=(Fix(words=r"zero_grad|step\.backward|clear"),),
        ),
        clears=False,
    ),
    ISLANDS.plant(
        "islands average hardly moves",
        Named(
            kind=MOVED,
            cause=rf"average|ema|{UNINFORMED}|NoProgress|no progress|not improv|Unchanged",
            fixes=(Fix(words=r"average|\bema\b|decay|evaluat|momentum"),),
        ),
        memory=0.99999,
    ),
    # Half precision
    GLYPHS.plant(
        "glyphs scaled beyond float16",
        Named(
            kind=PRECISION,
            cause=r"NonFinite|not finite|\bInf\b|\bNaN\b|overflow|float16|half|scale|refused",
            fixes=(Fix(words=r"scale|GradScaler|bfloat16|float16|float32|overflow|precision|autocast"),),
        ),
        scaler="overflow",
    ),
    # NaN and Inf
    Script(program=tables.table, good=-400.0, settings={"worst": True}).plant(
        "sales one cell missing",
        Named(
            kind=NOT_FINITE,
            cause=r"NonFinite|not finite|\bNaN\b|\bInf\b",
            fixes=(Fix(words=r"data|sample|input|row|exclude|clamp|division|log"),),
            names=("row 602",),
        ),
        broken_cell=602,
    ),
    SPECTRUM.plant(
        "spectrum step of fifty",
        Named(
            kind=ABSURD,
            cause=BROKEN_RATE,
            fixes=(Fix(words=RATE, rate="rate"), Fix(words=r"line.search|step (size|length)")),
        ),
        rate=50.0,
        search=False,
    ),
    # Gradients
    Script(program=sequences.forecast, good=0.8).plant(
        "forecast recurrent weights of 1.2",
        Named(
            kind=GRADIENTS,
            cause=r"explod|GradientExploding|NonFinite|overflow|not finite",
            fixes=(
                Fix(words=r"clip", settings={"clip": 1.0}),
                Fix(words=r"init|gain|recurrent|weights"),
                Fix(words=RATE, settings={"rate": 5e-4}, rate="rate"),
            ),
        ),
        kind="rnn",
        gain=1.2,
        clip=None,
    ),
    GRAPH.plant(
        "graph adjacency not normalized",
        Named(
            kind=GRADIENTS,
            cause=rf"{BROKEN_RATE}|GradientExploding|large|scale|{STUCK}",
            fixes=(
                Fix(words=r"normali[sz]|scale|input"),
                Fix(words=r"clip", settings={"clip": 0.5}),
                Fix(words=RATE, settings={"rate": 1e-3}, rate="rate"),
            ),
        ),
        normalized=False,
        depth=4,
    ),
    MOONS.plant(
        "moons determinant with the wrong sign",
        Named(
            kind=GRADIENTS,
            cause=rf"{BROKEN_RATE}|{UNINFORMED}|sign|unbounded|worse|collaps",
            fixes=(Fix(words=r"sign|determinant|loss|term|bound|target|label"),),
        ),
        sign=-1.0,
    ),
    CORRIDOR.plant(
        "corridor values without an end",
        Named(
            kind=GRADIENTS,
            cause=r"diverg|explod|grow|ris(es|ing|en)|unbounded|target|bootstrap|not (fall|decreas)|Decreasing|worse",
            fixes=(
                Fix(words=r"target|discount|bootstrap|terminal|bound|label"),
                Fix(words=RATE, settings={"rate": 5e-4}, rate="rate"),
            ),
        ),
        discount=1.0,
        ends=False,
    ),
    # Overfitting, leaks, dead units, collapse
    SALES.plant(
        "sales of thirty rows",
        Named(
            kind=OVERFIT,
            cause=GAP,
            fixes=(Fix(words=r"regulari|smaller|more (data|views|samples|rows)|dropout|stop|best|decay"),),
        ),
        rows=30,
    ),
    Script(program=pictures.sine_photo, good=-20.0, settings={"memory": True}).plant(
        "photo keeps its history",
        Named(kind=LEAK, cause=r"memory|leak", fixes=(Fix(words=r"item\(\)|detach|keep|list|leak|reference"),)),
        kept=150_000,
    ),
    CELLS.plant(
        "cells dead from the start",
        Named(
            kind=DEAD,
            cause=rf"dead|DeadGroup|inactive|no gradient|zero gradient|vanish|{STUCK}",
            fixes=(
                Fix(words=r"activation|saturat|init|bias|ReLU"),
                Fix(words=RATE, settings={"rate": 5e-3}, rate="rate"),
            ),
        ),
        dead=True,
    ),
    ADAPTERS.plant(
        "adapters zero twice",
        Named(
            kind=DEAD,
            cause=rf"{COLLAPSE}|inactive|gradients? (is|are) (exactly )?(0|zero)|vanish|Unchanged|{STUCK}",
            fixes=(
                Fix(words=r"init|zero|saturat|activation|contributes|detach|graph"),
                Fix(words=RATE, settings={"rate": 0.1}, rate="rate"),
            ),
        ),
        zero=True,
    ),
    EXPERTS.plant(
        "experts one gets everything",
        Named(
            kind=DEAD,
            cause=rf"{COLLAPSE}|expert|gate|balance",
            fixes=(Fix(words=r"gate|init|bias|balance|expert|saturat|weight|contributes|activation"),),
        ),
        bias=40.0,
    ),
    CODES.plant(
        "codes out of reach",
        Named(
            kind=DEAD,
            cause=rf"{COLLAPSE}|codes?\b|codebook|perplexity",
            fixes=(Fix(words=r"init|codebook|codes?\b|reset|commitment|contributes|saturat|activation"),),
        ),
        spread=30.0,
    ),
    CONTRAST.plant(
        "contrast without negatives",
        Named(
            kind=MODES,
            cause=rf"{COLLAPSE}|constant|spread|vanish|{STUCK}",
            fixes=(Fix(words=r"negative|collaps|contrast|diversity|loss|objective|target|label|term"),),
        ),
        negatives=False,
    ),
    PLACES.plant(
        "places without latent numbers",
        Named(
            kind=MODES,
            cause=r"collapse|diversity|spread|modes|cover|discriminator|critic|latent",
            fixes=(
                Fix(words=r"latent|noise|diversity|input"),
                Fix(words=r"critic|discriminator|" + RATE, settings={"critic_rate": 1e-2}),
            ),
        ),
        latent=0.01,
    ),
    PLACES.plant(
        "places maker rate x100",
        Named(
            kind=MODES,
            cause=rf"collapse|diversity|modes|cover|{RATE}|UpdateRatio|discriminator|critic|maker",
            fixes=(Fix(words=rf"{RATE}|balance|slower", rate="maker_rate"),),
        ),
        maker_rate=0.2,
    ),
    # Late
    MOONS.plant(
        "moons rate x100 at half time",
        Named(kind=JUMP, cause=rf"{RATE}|jump|schedule", fixes=(Fix(words=rf"{RATE}|schedul"),)),
        steep=100.0,
    ),
    Script(program=sequences.reversal, good=1.0, settings={"stop": 60, "watched": "moments", "total": 120}).plant(
        "reversal continued with a new optimizer",
        Named(kind=FRESH, cause=r"optimizer|moment|NotKept|not kept", fixes=(Fix(words=r"run\.track|optimizer"),)),
        tracks_optimizer=False,
    ),
)

YARD = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 1500 --schedule-scale 0.06 --regularization none",
    write=data.yard(15, 40, 450),
    good=19.0,
)
YARD_VIEWS = dataclasses.replace(YARD, figure=worst_view, good=-1.7)
TORUS = Command(pipeline="normals", words=f"{NORMALS} --steps 140", write=data.torus_normals(9, 30), good=-6.5)
WHEEL = Command(pipeline="video", words=f"{VIDEO} --epochs 45", write=data.wheel_frames(18), good=24.0)


def either_axes(advice: str) -> Train:
    """Read the normals as the remedy says; only their files can be repaired if it names none."""
    named = re.search(r"--axes (opengl|opencv|auto)", advice)
    if named is None:
        return TORUS.train()
    return TORUS.train(data.change_normals(outside_in), more=f"--axes {named.group(1)}")


def outside_in(normals: Array) -> Array:
    """Return normals in the axes of OpenCV."""
    return normals * np.array([1.0, -1.0, -1.0], np.float32)


def scrambled(pixels: Array) -> Array:
    """Return a picture whose pixels change places."""
    return np.random.default_rng(8).permutation(pixels.reshape(-1, 3)).reshape(pixels.shape)


PIPELINES: tuple[Plant, ...] = (
    YARD_VIEWS.spoilt(
        "yard two photos exchanged", "wrong sample", scenes.swap_names(2, 11), names=("yard_02", "yard_11")
    ),
    YARD_VIEWS.spoilt(
        "yard one photo overexposed",
        "wrong sample",
        scenes.change_photo(7, lambda pixels: 4.0 * pixels + 0.2),
        names=("yard_07",),
    ),
    YARD_VIEWS.spoilt("yard one photo twice", "wrong sample", data.repeat_photo(3, 9), names=("yard_09", "yard_03")),
    YARD.spoilt("yard focal length x1.7", "focal length", scenes.scale_focal(1.7)),
    dataclasses.replace(
        YARD.spoilt("yard photos cropped after calibration", "focal length", data.move_principal_point(9.0)),
        fault=Fault(
            kind=WORSE,
            cause=r"principal|intrinsic|reproject|lens|calibrat|crop|focal|camera",
            remedy=r"principal|intrinsic|calibrat|crop|camera|COLMAP|lens|focal",
        ),
    ),
    YARD.spoilt("yard poses inverted", "poses shuffled", data.invert_poses),
    YARD.flagged("yard rates x60", "rate too high", "--lr-factor 60"),
    YARD.flagged("yard rates / 1000", "rate too low", "--lr-factor 0.001"),
    YARD.flagged("yard resets every 60", "resets too often", "--reset-every 60"),
    YARD.flagged("yard prunes below .95", "prunes too much", "--least-opacity 0.95"),
    dataclasses.replace(
        TORUS.spoilt("torus normals of opencv", "wrong axes", data.change_normals(outside_in), repaired=either_axes),
        ideal="--axes opencv",
    ),
    TORUS.spoilt(
        "torus normals upside down",
        "wrong axes",
        data.change_normals(lambda normals: normals * np.array([1.0, -1.0, 1.0], np.float32)),
    ),
    TORUS.spoilt(
        "torus one mask inverted",
        "wrong sample",
        data.invert_mask(4),
        names=("004", "'4'", "view 4", "sample 4", "mask 4"),
    ),
    TORUS.spoilt(
        "torus cameras in reverse", "poses shuffled", scenes.change_cameras(lambda count: [*range(count)][::-1])
    ),
    TORUS.spoilt("torus focal length / 2", "focal length", scenes.scale_cameras(-1, 0.5)),
    TORUS.flagged("torus rate x1000", "rate too high", "--lr 1"),
    TORUS.flagged("torus eikonal x3000", "regularizer too strong", '--stages "fit@0 normal=1 mask=1 eikonal=300"'),
    WHEEL.spoilt(
        "wheel frames out of order",
        "targets shuffled",
        data.reorder_frames(lambda count: [7 * i % count for i in range(count)]),
    ),
    dataclasses.replace(WHEEL, figure=last_value("Eval/PSNR_Stats/train_min"), good=20.0).spoilt(
        "wheel one frame scrambled", "wrong sample", scenes.change_frame(11, scrambled), names=("11",)
    ),
    WHEEL.flagged("wheel rate x150", "rate too high", "--lr 1.5"),
    WHEEL.flagged("wheel rate / 5000", "rate too low", "--lr 2e-6"),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)
