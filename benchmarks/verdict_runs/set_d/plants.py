"""Plants of set d."""

import dataclasses

from verdict_runs.cases import Plant
from verdict_runs.phrases import (
    BLOWN,
    COLLAPSE,
    DEAD,
    GAP,
    HELD,
    LOUD,
    MISMATCH,
    NUMBERS,
    RATE,
    RATES,
    RESUME,
    SAMPLE,
    SCHEDULE,
    SILENT,
    SMALL,
    STUCK,
    TERMS,
    WORSE,
    named,
)
from verdict_runs.scripts import Fix, Named, Script

from . import choices, language, making, rows, sound, space, vision
from .pipelines import PIPELINES

OVERFIT = "overfitting"
LEAK = "memory leak"

# What a reader would accept as words for a fact. The words for a symptom are in all causes of their kind.
PAIRS = r"target|label|truth|annotation|pair|align|shuffl|data|mapping"
INPUTS = rf"{PAIRS}|input|feature|preprocess|transform|normali[sz]|scal|augment"

BOXES = Script(program=vision.boxes, good=0.62)
VEINS = Script(program=vision.veins, good=0.72)
TUNED = Script(program=vision.finetune, good=0.85)
TONES = Script(program=sound.tune, good=0.85)
POWER = Script(program=sound.power, good=0.75)
PROSE = Script(program=language.write, good=0.65)
SORTED = Script(program=language.translate, good=0.9)
FLATS = Script(program=rows.two_tasks, good=0.75)
FLATS_ADAM = dataclasses.replace(FLATS, settings={"optimizer": "adam", "rate": 3e-3})
FILMS = Script(program=rows.ratings, good=0.75)
FRAUD = Script(program=rows.fraud, good=0.5)
FACES = Script(program=making.vae, good=0.5)
WAVES = Script(program=making.critic, good=-0.27)
SPIRAL = Script(program=making.matching, good=-0.4)
REGION = Script(program=space.occupancy, good=0.8)
SHAPES = Script(program=space.shapes, good=0.7)
VALVES = Script(program=choices.valves, good=0.4)
VOICES = Script(program=choices.triplets, good=0.85)


def rated(cause: str, *more: Fix, setting: str = "rate") -> Named:
    """Return the fault of a learning rate."""
    return Named(kind=RATES, cause=cause, fixes=(Fix(words=RATE, rate=setting), *more))


LOOPS: tuple[Plant, ...] = (
    # Wrong targets or inputs
    BOXES.plant(
        "boxes mirrored pictures only",
        named(WORSE, rf"{STUCK}|{GAP}|\bbox\b", rf"{INPUTS}|\bbox|flip|mirror"),
        flips=True,
        flips_boxes=False,
    ),
    BOXES.plant(
        "boxes given as corners",
        named(MISMATCH, rf"{STUCK}|{GAP}|\bbox\b|format", rf"{INPUTS}|\bbox|format|corner|same"),
        corners=True,
    ),
    VEINS.plant(
        "veins masks three pixels off",
        named(WORSE, rf"{STUCK}|{GAP}|mask|target", rf"{INPUTS}|mask|shift|offset|evaluat"),
        shift=3,
    ),
    VEINS.plant(
        "veins turned without their masks",
        named(WORSE, rf"{STUCK}|{GAP}|mask|target", rf"{INPUTS}|mask|rotat|turn"),
        turns=True,
        turns_masks=False,
    ),
    POWER.plant(
        "power errors between all pairs",
        named(WORSE, rf"{STUCK}|broadcast|shape", rf"{INPUTS}|broadcast|shape|loss"),
        broadcast=True,
    ),
    POWER.plant(
        "power window holds the forecast",
        named(WORSE, rf"{GAP}|leak|{STUCK}", rf"{INPUTS}|leak|window|future|split"),
        leaks=True,
    ),
    PROSE.plant(
        "prose attention sees the future",
        named(WORSE, rf"{GAP}|leak|{STUCK}", rf"{INPUTS}|leak|mask|causal|future|regulari|split"),
        causal=False,
    ),
    PROSE.plant(
        "prose targets not shifted",
        named(WORSE, rf"{GAP}|leak|{STUCK}|trivial|identity", rf"{INPUTS}|leak|shift|split"),
        shifted=False,
    ),
    PROSE.plant(
        "prose nine unknown words",
        named(WORSE, rf"{GAP}|{STUCK}|vocabul|token", rf"{INPUTS}|vocabul|token|unknown|split|same"),
        unknown=9,
    ),
    SORTED.plant(
        "sorted decoder sees its target",
        named(WORSE, rf"{GAP}|leak|{STUCK}", rf"{INPUTS}|leak|shift|teacher|split"),
        sees_target=True,
    ),
    SORTED.plant(
        "sorted sources of other targets",
        named(WORSE, rf"{STUCK}|{GAP}|pair", rf"{INPUTS}|order|batch"),
        paired=False,
    ),
    SORTED.plant(
        "sorted source is padding",
        named(WORSE, rf"{STUCK}|{GAP}|input|encoder|source", rf"{INPUTS}|source|encod|padding"),
        blind=True,
    ),
    FLATS.plant(
        "flats rents out of order",
        named(WORSE, rf"{STUCK}|{GAP}|rent", rf"{INPUTS}|order|rent"),
        shuffles=True,
    ),
    FLATS.plant(
        "flats rents against all pairs",
        named(WORSE, rf"{STUCK}|{GAP}|broadcast|shape|rent", rf"{INPUTS}|broadcast|shape|loss|rent"),
        broadcast=True,
    ),
    FACES.plant(
        "faces compared with their neighbors",
        named(WORSE, rf"{STUCK}|{GAP}|pair|collaps", rf"{INPUTS}|order|batch"),
        others=True,
    ),
    FACES.plant(
        "faces below the range of the decoder",
        named(
            WORSE, rf"{STUCK}|range|saturat|sigmoid|{DEAD}", rf"{INPUTS}|range|sigmoid|activation|saturat|output|init"
        ),
        squash="sigmoid",
    ),
    SPIRAL.plant(
        "spiral velocities reversed",
        named(WORSE, rf"{STUCK}|{GAP}|sign|declin|fell|worse|sample", rf"{INPUTS}|sign|sampl|loss"),
        sign=-1.0,
    ),
    REGION.plant(
        "region points on the diagonal",
        named(WORSE, rf"{GAP}|sampl|{STUCK}|cover", rf"{INPUTS}|sampl|regulari|points|split|cover|more"),
        diagonal=True,
    ),
    REGION.plant(
        "region coordinates in pixels",
        named(WORSE, rf"{STUCK}|scale|input|coordinate|{BLOWN}|{DEAD}", rf"{INPUTS}|coordinate|range|{RATE}"),
        unit=256.0,
        encoded=False,
    ),
    SHAPES.plant(
        "shapes pooled over the batch",
        named(WORSE, rf"{STUCK}|pool|axis|input", rf"{INPUTS}|pool|axis|\bdim\b|model|architect"),
        pool=0,
    ),
    TONES.plant(
        "tones of sixteen bits",
        named(WORSE, rf"{STUCK}|{GAP}|scale|amplitude|running|statistic", rf"{INPUTS}|amplitude|range|evaluat|same"),
        amplitude=32768.0,
        normalizes="none",
    ),
    FRAUD.plant(
        "fraud half of the labels inverted",
        named(WORSE, rf"{STUCK}|{GAP}|label|noise", rf"{INPUTS}|noise"),
        flipped=0.5,
    ),
    VALVES.plant(
        "valves rewards of other states",
        named(WORSE, rf"{STUCK}|reward", rf"{INPUTS}|reward|advantage|order"),
        reward="shuffled",
    ),
    VALVES.plant(
        "valves rewards reversed",
        named(WORSE, rf"{STUCK}|reward|sign|declin|fell|fall|worse", rf"{INPUTS}|reward|advantage|sign"),
        reward="reversed",
    ),
    VOICES.plant(
        "voices positive and negative exchanged",
        named(
            WORSE, rf"{STUCK}|{GAP}|sign|{COLLAPSE}|worse|declin|fell", rf"{INPUTS}|sign|positive|negative|triplet|loss"
        ),
        swapped=True,
    ),
    # One sample is wrong
    Script(program=vision.boxes, good=-0.15, settings={"worst": True}).plant(
        "boxes one annotation elsewhere",
        named(
            SAMPLE,
            r"sample|picture|image|annotation|outlier|label|box",
            r"sample|picture|image|annotation|label|target|exclude|inspect|look at|check",
            names=("img_0037.png",),
        ),
        wrong_box=37,
    ),
    TONES.plant(
        "tones one silent clip",
        named(
            SAMPLE,
            r"not finite|non.?finite|\bNaN\b|\bInf\b|sample|clip",
            r"data|sample|input|exclude|clamp|divi|silen|normali|epsilon|\beps\b",
            names=("clip_071.wav",),
        ),
        silent=71,
        normalizes="plain",
    ),
    # Rates and schedules
    BOXES.plant("boxes rate x500", rated(rf"{RATE}|{BLOWN}|{DEAD}|update"), rate=1.0),
    TUNED.plant("swatches rate / 3000", rated(rf"{SMALL}|{STUCK}"), rate=1e-6, body_rate=1e-7),
    TONES.plant("tones rate x300", rated(rf"{RATE}|{BLOWN}|{DEAD}|update"), rate=10.0),
    PROSE.plant("prose rate x250", rated(rf"{RATE}|{BLOWN}|{DEAD}|update|clip"), rate=1.0),
    FILMS.plant("films rate x60", rated(rf"{RATE}|{BLOWN}|update"), rate=3.0),
    TONES.plant(
        "tones warm-up longer than the run",
        named(RATES, rf"{SMALL}|{STUCK}", rf"{SCHEDULE}|longer|more steps"),
        warmup=14000,
    ),
    POWER.plant(
        "power plateau of the wrong mode",
        named(RATES, SMALL, rf"{SCHEDULE}|plateau|mode"),
        plateau="max",
    ),
    POWER.plant(
        "power epsilon of ten",
        Named(
            kind=RATES,
            cause=rf"{SMALL}|\beps(ilon)?\b|{STUCK}",
            fixes=(Fix(words=r"\beps(ilon)?\b"), Fix(words=RATE, settings={"rate": 1.0}, rate="rate")),
        ),
        eps=10.0,
    ),
    # Weights of the terms
    VEINS.plant(
        "veins weighted for the background",
        named(
            TERMS, rf"{STUCK}|background|imbalanc|majority|constant|empty|weight", rf"weight|balanc|{PAIRS}|loss|class"
        ),
        positive=0.02,
        dice_weight=0.0,
    ),
    VEINS.plant(
        "veins overlap with the wrong sign",
        named(TERMS, rf"sign|{STUCK}|dice|{LOUD}|negative|worse|declin|fell", rf"sign|dice|loss|weight|term|{PAIRS}"),
        dice_sign=-1.0,
        dice_weight=3.0,
    ),
    FLATS_ADAM.plant(
        "flats rents in cents",
        named(TERMS, rf"{LOUD}|scale|unit|rent|{STUCK}", rf"weight|scale|normali[sz]|standardi[sz]|unit|{PAIRS}"),
        unit=100.0,
    ),
    Script(program=rows.two_tasks, good=0.72, settings={"balance": "learned"}).plant(
        "flats variances without a bound",
        named(
            TERMS,
            rf"uncertain|varianc|weight|{SMALL}|vanish|{STUCK}|shrink|collaps",
            r"uncertain|varianc|weight|bound|term|loss|log",
        ),
        balance="unbounded",
    ),
    BOXES.plant(
        "boxes weigh a thousandth",
        named(TERMS, rf"{LOUD}|\bbox\b|{STUCK}", r"weight|scale|\bbox\b"),
        box_weight=0.001,
    ),
    FILMS.plant(
        "films factors pulled to zero",
        named(TERMS, rf"{LOUD}|\bsize\b|regulari|{STUCK}|shrink|vanish|{COLLAPSE}", r"weight|regulari|decay|size"),
        decay=1.0,
    ),
    FRAUD.plant(
        "fraud weighs a thousand",
        named(TERMS, rf"{STUCK}|imbalanc|positive|weight|constant|scale|{BLOWN}", rf"weight|balanc|class|{PAIRS}|loss"),
        positive=1000.0,
    ),
    FACES.plant(
        "faces divergence with the wrong sign",
        named(
            TERMS,
            rf"{BLOWN}|sign|negative|\bkl\b|{LOUD}|{STUCK}|worse",
            r"sign|\bkl\b|divergence|weight|term|loss|clip",
        ),
        sign=-1.0,
    ),
    VALVES.plant(
        "valves entropy x1000",
        named(TERMS, rf"{LOUD}|entropy|uniform|random|{STUCK}", r"entropy|weight"),
        entropy=10.0,
    ),
    # Parts that do not learn
    BOXES.plant(
        "boxes clamped outside of the picture",
        named(SILENT, rf"{DEAD}|clamp|{STUCK}|\bbox\b", rf"clamp|init|bias|saturat|activation|gradient|{INPUTS}"),
        clamped=True,
    ),
    VEINS.plant(
        "veins logits behind a ReLU",
        named(SILENT, rf"{DEAD}|ReLU|activation|{STUCK}", rf"ReLU|activation|init|bias|saturat|logit|{INPUTS}"),
        final_relu=True,
    ),
    TUNED.plant(
        "swatches head frozen",
        named(
            SILENT,
            rf"{HELD}|{DEAD}|requires_grad|\bhead\b|{STUCK}",
            rf"requires_grad|froze|freez|unfreez|optimizer|head|{INPUTS}",
        ),
        freezes="head",
    ),
    TUNED.plant(
        "swatches frozen body never loaded",
        named(
            SILENT,
            rf"{HELD}|{DEAD}|requires_grad|\bbody\b|{STUCK}",
            rf"requires_grad|froze|freez|load|checkpoint|weights|body|{INPUTS}",
        ),
        loaded=False,
        freezes="body",
    ),
    SORTED.plant(
        "sorted encoder in no optimizer",
        named(SILENT, rf"{HELD}|encoder|source", r"optimizer|parameters"),
        trains="decoder",
    ),
    FLATS.plant(
        "flats district detached",
        named(SILENT, rf"{DEAD}|district|graph", r"detach|no_grad|item\(\)|gradient|graph|\.data\b"),
        cut="district",
    ),
    FACES.plant(
        "faces latent numbers detached",
        named(
            SILENT,
            rf"{DEAD}|encoder|{COLLAPSE}|\bkl\b|{STUCK}",
            rf"detach|no_grad|reparametri|gradient|graph|\bkl\b|{INPUTS}",
        ),
        detached=True,
    ),
    FACES.plant(
        "faces begin with huge variances",
        named(
            SILENT,
            rf"{STUCK}|{LOUD}|varianc|\bkl\b|{BLOWN}|{COLLAPSE}|{DEAD}",
            rf"init|varianc|bias|\bkl\b|weight|clip|{RATE}",
        ),
        spread=12.0,
    ),
    FILMS.plant(
        "films factors begin at zero",
        named(SILENT, rf"{DEAD}|{STUCK}|init|symmetr", rf"init|zero|symmetr|saturat|{INPUTS}"),
        start=0.0,
    ),
    WAVES.plant(
        "waves critic in no optimizer",
        named(SILENT, rf"{HELD}|judge|critic|discriminator", r"optimizer|parameters|judge|critic"),
        swapped=True,
    ),
    WAVES.plant(
        "waves maker with the wrong sign",
        named(TERMS, rf"sign|{BLOWN}|{STUCK}|worse|{COLLAPSE}|declin", rf"sign|maker|generator|loss|critic|{PAIRS}"),
        maker_sign=-1.0,
    ),
    VALVES.plant(
        "valves new probabilities detached",
        named(SILENT, rf"{DEAD}|policy|actor|surrogate|ratio", r"detach|no_grad|gradient|graph|ratio|policy"),
        frozen_ratio=True,
    ),
    SPIRAL.plant(
        "spiral average never updated",
        named(
            SILENT, rf"average|\bema\b|{STUCK}|unchanged|{GAP}", r"average|\bema\b|update_parameters|evaluat|momentum"
        ),
        averages=False,
    ),
    # Training and evaluation differ
    TUNED.plant(
        "swatches evaluated in blue, green, red",
        named(MISMATCH, rf"{GAP}|channel|{STUCK}", rf"{INPUTS}|channel|same|evaluat|split"),
        channels="bgr",
    ),
    TONES.plant(
        "tones evaluated at another pace",
        named(MISMATCH, rf"{GAP}|{STUCK}|sample rate", rf"{INPUTS}|sample rate|resampl|same|evaluat|split"),
        pace=2.0,
    ),
    TONES.plant(
        "tones labels begin at one",
        named(MISMATCH, rf"{GAP}|{STUCK}|label", rf"{INPUTS}|same|evaluat|split|index"),
        first_label=1,
    ),
    TONES.plant(
        "tones norms without running statistics",
        named(
            MISMATCH,
            rf"{GAP}|batch.?norm|running|statistic|momentum|{STUCK}",
            rf"batch.?norm|running|statistic|momentum|{INPUTS}|evaluat|mode",
        ),
        momentum=0.0,
    ),
    PROSE.plant(
        "prose evaluated with another tokenizer",
        named(MISMATCH, rf"{GAP}|{STUCK}|token|vocabul", rf"{INPUTS}|token|vocabul|same|evaluat|split"),
        renumbered=True,
    ),
    FILMS.plant(
        "films numbered from one in the test",
        named(MISMATCH, rf"{GAP}|{STUCK}|index|number", rf"{INPUTS}|index|number|offset|same|evaluat|split"),
        offset=1,
    ),
    FRAUD.plant(
        "fraud columns in another order",
        named(MISMATCH, rf"{GAP}|{STUCK}|column|feature", rf"{INPUTS}|column|order|same|evaluat|split"),
        permuted=True,
    ),
    FRAUD.plant(
        "fraud two sigmoids",
        named(MISMATCH, rf"{GAP}|{STUCK}|sigmoid|saturat|vanish", rf"sigmoid|logit|activation|{INPUTS}|loss"),
        sigmoids=2,
    ),
    SPIRAL.plant(
        "spiral times of a thousand",
        named(MISMATCH, rf"{GAP}|{STUCK}|time|scale", rf"{INPUTS}|time|same|sampl|evaluat"),
        clock=1000.0,
    ),
    SHAPES.plant(
        "shapes never turned in training",
        named(MISMATCH, rf"{GAP}|rotat|turn|{STUCK}", rf"{INPUTS}|rotat|turn|more|regulari|evaluat|split"),
        turned=False,
    ),
    # Numbers of the machine
    TONES.plant(
        "tones logarithm of no power",
        named(NUMBERS, rf"{BLOWN}|pitch|\blog", r"\blog|epsilon|\beps\b|clamp|floor|data|input|divi"),
        features="log",
        floor=0.0,
    ),
    SHAPES.plant(
        "shapes likelihood of plain logits",
        named(
            NUMBERS,
            rf"{BLOWN}|negative|softmax|bound|logit|{STUCK}|below (0|zero)",
            rf"softmax|logit|loss|sign|bound|{INPUTS}",
        ),
        loss="nll",
    ),
    FLATS_ADAM.plant(
        "flats weights of sixteen bits",
        named(
            NUMBERS,
            rf"bfloat16|float16|half|precision|round|{SMALL}",
            rf"bfloat16|float32|precision|dtype|autocast|{RATE}",
        ),
        dtype="bfloat16",
        rate=3e-5,
    ),
    FLATS.plant(
        "flats clipped before they are unscaled",
        Named(
            kind=NUMBERS,
            cause=rf"clip|unscale|loss scale|{SMALL}|vanish",
            fixes=(Fix(words=r"unscale|loss scal|clip"), Fix(words=RATE, settings={"rate": 3000.0}, rate="rate")),
        ),
        clip=1.0,
        scale=65536.0,
        unscales_first=False,
    ),
    # Overfitting, memory, continuing
    PROSE.plant(
        "prose of twelve texts",
        named(OVERFIT, GAP, r"regulari|smaller|more (data|samples|texts)|dropout|stop|best|decay"),
        amount=12,
    ),
    FILMS.plant(
        "films forty factors for few ratings",
        named(OVERFIT, GAP, r"regulari|smaller|more (data|samples|ratings)|dropout|stop|best|decay|fewer"),
        dimensions=40,
        decay=0.0,
        count=1500,
    ),
    REGION.plant(
        "region frequencies too high",
        named(
            OVERFIT,
            rf"{GAP}|frequen|encod",
            r"regulari|smaller|more (data|samples|points)|frequen|encod|bandwidth|dropout|stop|best|decay",
        ),
        octaves=40.0,
    ),
    Script(program=sound.tune, good=-20.0, settings={"watched": "memory"}).plant(
        "tones keep a tensor of each step",
        named(LEAK, r"memory|leak|grow", r"item\(\)|detach|keep|list|leak|reference"),
        kept=200_000,
    ),
    Script(program=sound.tune, good=-1.5, settings={"watched": "rate", "stop": 70}).plant(
        "tones continued with a new schedule",
        named(RESUME, rf"{SCHEDULE}|not (kept|tracked|saved)|resum", rf"track|{SCHEDULE}"),
        tracks_schedule=False,
    ),
    VOICES.plant(
        "voices margin of minus one",
        named(
            TERMS,
            rf"margin|{COLLAPSE}|{STUCK}|{DEAD}|(is|are|exactly) (0|zero)|constant",
            rf"margin|{INPUTS}|loss|negative|triplet",
        ),
        margin=-1.0,
    ),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)
