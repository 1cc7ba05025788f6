"""Plants of set e."""

from verdict_runs.cases import Plant
from verdict_runs.phrases import (
    BACKWARD,
    BLOWN,
    COLLAPSE,
    DEAD,
    GAP,
    HELD,
    INPUTS,
    LOUD,
    MISMATCH,
    NUMBERS,
    PAIRS,
    RATE,
    RATES,
    RESUME,
    SAMPLE,
    SCHEDULE,
    SEEN,
    SILENT,
    SMALL,
    STUCK,
    TERMS,
    WORSE,
    named,
)
from verdict_runs.scripts import Fix, Named, Script

from . import agents, learning, physics, pictures, relations, text
from .pipelines import PIPELINES

# What a reader would accept as words for a fact. The words for a symptom are in all causes of their kind.
FELL = r"sign|declin|fell|falls|worse|invert|opposite"
GRAPH = r"detach|no_grad|item\(\)|gradient|graph|\.data\b"

JOINTS = Script(program=pictures.joints, good=0.9)
SHARPEN = Script(program=pictures.sharpen, good=2.7)
STRINGS = Script(program=pictures.strings, good=0.8)
ENCIPHER = Script(program=text.encipher, good=0.8)
CLOZE = Script(program=text.cloze, good=0.6)
DOCK = Script(program=agents.dock, good=-0.025)
CATCH = Script(program=agents.catch, good=0.7)
SPRING = Script(program=physics.spring, good=-0.1)
SLICES = Script(program=physics.slices, good=20.0)
ORBITS = Script(program=physics.orbits, good=-0.2)
BONDED = Script(program=relations.bonded, good=0.8)
CLAIMS = Script(program=relations.claims, good=0.2)
TOWERS = Script(program=relations.towers, good=0.8)
DOUBTS = Script(program=relations.doubts, good=0.8)
ADAPT = Script(program=learning.adapt, good=-0.12)
COARSE = Script(program=learning.coarse, good=0.75)
UNLABELED = Script(program=learning.unlabeled, good=0.55)
SPIKES = Script(program=learning.spikes, good=0.75)
FORGE = Script(program=learning.forge, good=-0.15)


LOOPS: tuple[Plant, ...] = (
    # Wrong targets or inputs
    JOINTS.plant(
        "joints softmax over the joints",
        named(WORSE, rf"{STUCK}|softmax|axis|\bdim|{DEAD}|{BLOWN}", rf"softmax|axis|\bdim|output|activation|{INPUTS}"),
        over="joints",
    ),
    JOINTS.plant(
        "joints targets in pixels",
        named(WORSE, rf"{STUCK}|unit|range|scale|pixel|saturat|{GAP}", rf"unit|range|pixel|output|{INPUTS}"),
        in_pixels=True,
    ),
    SHARPEN.plant(
        "tiles turned over without their input",
        named(WORSE, rf"{STUCK}|{GAP}|augment|flip|mirror", rf"flip|mirror|{INPUTS}"),
        flips="targets",
    ),
    SHARPEN.plant(
        "tiles normalized twice",
        named(WORSE, rf"{GAP}|{STUCK}|normali[sz]|scale|mean|range", rf"same|evaluat|unit|range|{INPUTS}"),
        twice=True,
    ),
    STRINGS.plant(
        "strings lengths in another unit",
        named(WORSE, rf"{STUCK}|length|{GAP}|blank|unused", rf"length|blank|loss|{INPUTS}"),
        columns=6,
    ),
    STRINGS.plant(
        "strings blank of class zero",
        named(WORSE, rf"{STUCK}|blank|{GAP}|class|mismatch", rf"blank|class|index|loss|same|{INPUTS}"),
        blank=0,
    ),
    ENCIPHER.plant(
        "cipher loss counts the prompt",
        named(WORSE, rf"{STUCK}|mask|{GAP}|prompt", rf"mask|ignore|loss|{INPUTS}"),
        scored="prompt",
    ),
    ENCIPHER.plant(
        "cipher targets shifted by two",
        named(WORSE, rf"{GAP}|{STUCK}|shift|off by", rf"shift|same|evaluat|split|{INPUTS}"),
        shift=2,
    ),
    CLOZE.plant(
        "cloze sees only padding",
        named(WORSE, rf"{STUCK}|mask|padding|{GAP}", rf"mask|padding|invert|{INPUTS}"),
        padding="only",
    ),
    SLICES.plant(
        "slices degrees for radians",
        named(WORSE, rf"{STUCK}|angle|{GAP}|pose|geometr|inconsisten", rf"angle|degree|radian|geometr|pose|{INPUTS}"),
        degrees=True,
    ),
    SLICES.plant(
        "slices detectors off center",
        named(WORSE, rf"{GAP}|{STUCK}|offset|center|geometr|inconsisten", rf"offset|center|shift|geometr|{INPUTS}"),
        offset=0.35,
    ),
    ORBITS.plant(
        "orbits time and batch exchanged",
        named(WORSE, rf"{STUCK}|axis|axes|transpos|shape|{GAP}", rf"axis|axes|transpos|shape|\bdim|batch|{INPUTS}"),
        axes="exchanged",
    ),
    ORBITS.plant(
        "orbits across the ends of recordings",
        named(WORSE, rf"{STUCK}|{GAP}|window|jump|cut|bound", rf"window|jump|cut|bound|split|{INPUTS}"),
        cuts=True,
    ),
    BONDED.plant(
        "bonds of the first molecule",
        named(
            WORSE,
            rf"{STUCK}|index|offset|edge|batch|input|{GAP}|{BLOWN}",
            rf"index|offset|edge|batch|model|{INPUTS}",
        ),
        offsets=False,
    ),
    BONDED.plant(
        "bonds atoms dealt out to molecules",
        named(WORSE, rf"{STUCK}|pool|index|batch|axis|input|{GAP}", rf"pool|index|batch|axis|model|{INPUTS}"),
        pooled="batch",
    ),
    BONDED.plant(
        "bonds sorted without their properties",
        named(WORSE, rf"{STUCK}|{GAP}|order|sort", rf"sort|{INPUTS}"),
        sorted_inputs=True,
    ),
    TOWERS.plant(
        "towers each query with the next item",
        named(WORSE, rf"{STUCK}|{GAP}|pair|index|{FELL}", rf"index|offset|positive|batch|{INPUTS}"),
        shift=1,
    ),
    ADAPT.plant(
        "adapting judged on another wave",
        named(WORSE, rf"{STUCK}|{GAP}|pair|task", rf"task|support|query|batch|{INPUTS}"),
        same_task=False,
    ),
    SPRING.plant(
        "spring times in milliseconds",
        named(WORSE, rf"{GAP}|{STUCK}|unit|cover|range|sampl", rf"unit|cover|range|sampl|point|{INPUTS}"),
        unit=0.001,
    ),
    SPRING.plant(
        "spring of ReLUs",
        named(
            WORSE,
            rf"{STUCK}|ReLU|activation|derivative|{DEAD}|{GAP}",
            rf"ReLU|activation|smooth|derivative|architect|model|saturat|{INPUTS}",
        ),
        activation="relu",
    ),
    # One sample is wrong
    Script(program=pictures.sharpen, good=-4.0, settings={"worst": True}).plant(
        "tiles one target of another",
        named(
            SAMPLE,
            r"sample|tile|picture|image|outlier|spike|target|label",
            r"sample|tile|picture|image|label|target|exclude|inspect|look at|check",
            names=("tile_019",),
        ),
        wrong_tile=19,
    ),
    Script(program=physics.slices, good=-6.0, settings={"worst": True}).plant(
        "slices one projection mirrored",
        named(
            SAMPLE,
            r"sample|view|angle|picture|image|outlier|spike|target|label",
            r"sample|view|angle|pose|label|target|exclude|inspect|look at|check",
            names=("angle_048",),
        ),
        mirrored=8,
    ),
    Script(program=relations.claims, good=0.2, settings={"worst": True}).plant(
        "claims one row of thousands",
        named(
            SAMPLE,
            rf"sample|row|policy|outlier|spike|{BLOWN}|label|target",
            r"sample|row|policy|label|target|exclude|inspect|look at|check|clip|outlier|data",
            names=("policy 31",),
        ),
        wrong_row=31,
    ),
    # Wrong sign or order
    SHARPEN.plant(
        "tiles ratio minimized",
        named(BACKWARD, rf"{FELL}|{BLOWN}|{STUCK}|negative|{RATE}", rf"sign|negat|loss|{PAIRS}|maximi[sz]|bound"),
        loss="psnr",
    ),
    DOCK.plant(
        "dock away from the harbor",
        named(BACKWARD, rf"{FELL}|{STUCK}|reward|policy|saturat|{BLOWN}", rf"sign|actor|policy|reward|loss|{PAIRS}"),
        sign=-1.0,
    ),
    DOCK.plant(
        "dock ends inverted",
        named(
            BACKWARD,
            rf"{STUCK}|{FELL}|terminal|done|bootstrap|mask|value|reward|discount",
            rf"terminal|done|bootstrap|mask|reward|discount|{INPUTS}",
        ),
        ends="inverted",
    ),
    CATCH.plant(
        "catch rewards of the past",
        named(BACKWARD, rf"{STUCK}|reward|return|{FELL}|advantage", rf"reward|return|advantage|cumsum|{PAIRS}"),
        counts="until now",
    ),
    CATCH.plant(
        "catch chances of other choices",
        named(WORSE, rf"{STUCK}|reward|return|action|advantage", rf"action|choice|reward|return|log.?prob|{PAIRS}"),
        executed=False,
    ),
    CATCH.plant(
        "catch sees the first moment only",
        named(WORSE, rf"{STUCK}|input|observation|state|reward", rf"observation|state|stale|{INPUTS}"),
        stale=True,
    ),
    # Training sees the answer
    CLOZE.plant(
        "cloze without gaps",
        named(SEEN, rf"{GAP}|leak|{STUCK}|identity", rf"leak|mask|hid|split|evaluat|{INPUTS}"),
        hides=False,
    ),
    ENCIPHER.plant(
        "cipher mask the wrong way around",
        named(SEEN, rf"{GAP}|leak|{STUCK}|mask|future", rf"leak|mask|causal|future|split|evaluat|{INPUTS}"),
        mask="reversed",
    ),
    CLAIMS.plant(
        "claims paid sum as a feature",
        named(SEEN, rf"{GAP}|leak|{STUCK}|feature|column", rf"leak|column|split|{INPUTS}"),
        leaks=True,
    ),
    # Weights of the terms
    SPRING.plant(
        "spring at rest",
        named(TERMS, rf"{LOUD}|start|{STUCK}|trivial|zero|{GAP}", r"weight|start|initial|boundary|balance|scale|term"),
        start=1e-5,
    ),
    SPRING.plant(
        "spring without its equation",
        named(TERMS, rf"{LOUD}|equation|{STUCK}|{GAP}", r"weight|equation|residual|balance|scale|term"),
        residual=1e-6,
    ),
    DOUBTS.plant(
        "doubts divergence not divided",
        named(TERMS, rf"{LOUD}|divergence|\bkl\b|{STUCK}|{COLLAPSE}", r"weight|divergence|\bkl\b|scale|balance|term"),
        weight=1.0,
    ),
    UNLABELED.plant(
        "views without variance",
        named(
            TERMS,
            rf"{COLLAPSE}|{LOUD}|variance|constant|{STUCK}|vanish|shr[aiu]nk",
            rf"variance|weight|collaps|term|{PAIRS}",
        ),
        variance=0.0,
    ),
    CATCH.plant(
        "catch entropy x300",
        named(TERMS, rf"{LOUD}|entropy|uniform|random|{STUCK}", r"entropy|weight"),
        entropy=3.0,
    ),
    TOWERS.plant(
        "towers temperature of a hundred",
        named(
            TERMS,
            rf"{STUCK}|temperature|scale|{SMALL}|vanish|{LOUD}|uniform",
            rf"temperature|scale|logit|softmax|normali[sz]|{RATE}|{INPUTS}",
        ),
        temperature=100.0,
    ),
    # Parts that do not learn
    COARSE.plant(
        "coarse rounding without a slope",
        named(
            SILENT, rf"{DEAD}|round|quanti[sz]|{STUCK}", rf"round|quanti[sz]|straight|saturat|activation|{GRAPH}|init"
        ),
        through=False,
    ),
    COARSE.plant(
        "coarse range of a fiftieth",
        named(
            SILENT,
            rf"{DEAD}|range|clip|clamp|scale|{STUCK}|round|quanti[sz]",
            rf"range|clip|clamp|saturat|activation|quanti[sz]|init|logit|{GRAPH}|{INPUTS}",
        ),
        reach=0.002,
        norm=False,
    ),
    SPIKES.plant(
        "spikes without a slope",
        named(SILENT, rf"{DEAD}|spik|threshold|{STUCK}", rf"surrogate|spik|threshold|saturat|activation|{GRAPH}|init"),
        surrogate=False,
    ),
    SPIKES.plant(
        "spikes of a thousand volts",
        named(
            SILENT,
            rf"{DEAD}|spik|threshold|{STUCK}",
            rf"surrogate|spik|threshold|saturat|activation|{GRAPH}|init|{INPUTS}",
        ),
        threshold=1000.0,
    ),
    DOCK.plant(
        "dock target networks never updated",
        named(SILENT, rf"{HELD}|target|old_|{STUCK}|reward", r"target|old_|average|update|optimizer|\btau\b|copy"),
        pace=0.0,
    ),
    DOCK.plant(
        "dock thrust detached",
        named(SILENT, rf"{DEAD}|policy|actor", rf"actor|policy|{GRAPH}"),
        cut=True,
    ),
    ENCIPHER.plant(
        "cipher body without gradients",
        named(SILENT, rf"{DEAD}|{HELD}|\bbody\b|model|{STUCK}", rf"{GRAPH}|requires_grad|froze|optimizer"),
        cut=True,
    ),
    TOWERS.plant(
        "towers items never stepped",
        named(SILENT, rf"{HELD}|{DEAD}|item|table", r"optimizer|step|update|parameters|item|table"),
        item_optimizer=False,
    ),
    ADAPT.plant(
        "adapting a copy",
        named(SILENT, rf"{DEAD}|{HELD}|graph|depends on no|{STUCK}", rf"copy|{GRAPH}|optimizer|parameters|contributes"),
        copies=True,
    ),
    FORGE.plant(
        "forger judged without a gradient",
        named(SILENT, rf"{DEAD}|forger|fooled|graph|depends on no", rf"forger|{GRAPH}|generator|contributes"),
        cut=True,
    ),
    # The game of two
    FORGE.plant(
        "forger critic calls all true",
        named(
            WORSE,
            rf"{STUCK}|critic|discriminat|fake|{COLLAPSE}|{FELL}|{DEAD}|vanish",
            rf"critic|discriminat|fake|{PAIRS}",
        ),
        fakes_called=1.0,
    ),
    FORGE.plant(
        "forger critic rate x100",
        named(
            RATES,
            rf"{RATE}|critic|discriminat|{BLOWN}|update|{COLLAPSE}|{DEAD}|dominat",
            rf"{RATE}|critic|discriminat|balance",
        ),
        critic_rate=0.1,
    ),
    # Rates and schedules
    ENCIPHER.plant(
        "cipher rate in percent",
        Named(kind=RATES, cause=rf"{RATE}|{BLOWN}|{DEAD}|update", fixes=(Fix(words=RATE, rate="rate"),)),
        rate=0.4,
    ),
    ENCIPHER.plant(
        "cipher schedule stepped at each batch",
        named(RATES, rf"{SMALL}|zero|{STUCK}", rf"{SCHEDULE}|batch"),
        micro=4,
        anneals="batches",
    ),
    ADAPT.plant(
        "adapting inner rate / 10000",
        named(RATES, rf"{SMALL}|{STUCK}|inner", rf"inner|adapt|{RATE}|task|{INPUTS}"),
        inner=5e-6,
    ),
    # Training and evaluation differ
    JOINTS.plant(
        "joints rows read as x",
        named(MISMATCH, rf"{GAP}|{STUCK}|axis|axes|order", rf"axis|axes|same|evaluat|split|{INPUTS}"),
        exchanged=True,
    ),
    ORBITS.plant(
        "orbits clock of a tenth",
        named(MISMATCH, rf"{GAP}|{STUCK}|time|unit", rf"time|unit|same|evaluat|split|{INPUTS}"),
        clock=0.1,
    ),
    BONDED.plant(
        "bonds answers in another unit",
        named(MISMATCH, rf"{GAP}|{STUCK}|unit|scale", rf"unit|same|evaluat|split|{INPUTS}"),
        restored=False,
    ),
    CLAIMS.plant(
        "claims exposure in days",
        named(MISMATCH, rf"{GAP}|{STUCK}|unit|scale|days|exposure", rf"unit|same|evaluat|split|exposure|{INPUTS}"),
        days=True,
    ),
    CLAIMS.plant(
        "claims regions numbered anew",
        named(
            MISMATCH,
            rf"{GAP}|{STUCK}|region|categor|index|number",
            rf"region|categor|index|number|same|evaluat|split|{INPUTS}",
        ),
        coded="twice",
    ),
    COARSE.plant(
        "coarse evaluated with two bits",
        named(MISMATCH, rf"{GAP}|{STUCK}|quanti[sz]|bits|round", rf"bits|quanti[sz]|same|evaluat|split|{INPUTS}"),
        bits=8,
        evaluated_bits=2,
    ),
    COARSE.plant(
        "coarse dropout in the evaluation",
        named(MISMATCH, rf"{GAP}|{STUCK}|dropout|mode", r"\.eval\(\)|mode|dropout|run\.evaluation"),
        drop=0.8,
        mode="train",
    ),
    # Numbers of the machine
    CLAIMS.plant(
        "claims logarithm of a ReLU",
        named(
            NUMBERS, rf"{BLOWN}|\blog|{DEAD}|{STUCK}", r"\blog|epsilon|\beps\b|clamp|floor|divi|ReLU|activation|init"
        ),
        output="relu",
    ),
    CLOZE.plant(
        "cloze logarithm of no chance",
        named(NUMBERS, rf"{BLOWN}|\blog|\bgaps\b", r"\blog|epsilon|\beps\b|clamp|floor|softmax|divi|square root"),
        plain=True,
        sharp=80.0,
    ),
    # Continued
    Script(program=pictures.strings, good=0.8, settings={"stop": 95, "average": 0.98}).plant(
        "strings continued with a new average",
        named(
            RESUME, rf"average|\bmean\b|not (kept|tracked|saved)|resum|{GAP}|{FELL}|drop", r"track|average|checkpoint"
        ),
        tracks_average=False,
    ),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)
