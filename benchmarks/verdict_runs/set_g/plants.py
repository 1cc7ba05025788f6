"""Plants of set g."""

from verdict_runs.cases import Plant
from verdict_runs.phrases import (
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
    SEEN,
    SILENT,
    STUCK,
    TERMS,
    WORSE,
    named,
)
from verdict_runs.scripts import Fix, Named, Script

from . import making, sequences, tables, vision, worlds
from .pipelines import PIPELINES

SHAPE = "wrong architecture"
OVERFIT = "overfitting"

MELODIES = Script(program=sequences.melodies, good=0.9)
DEMAND = Script(program=sequences.demand, good=0.85)
CALLS = Script(program=sequences.calls, good=0.85)
ACRES = Script(program=vision.acres, good=0.65)
BUOYS = Script(program=vision.buoys, good=0.85)
ACCENTS = Script(program=vision.accents, good=0.5)
ACCENTS_MEAN = Script(
    program=vision.accents, good=0.6, settings={"average": "float32", "keeps": 0.998, "lr": 4e-3, "total": 900}
)
MORTAR = Script(program=tables.mortar, good=0.85)
CLICKS = Script(program=tables.clicks, good=0.04)
TUTOR = Script(program=tables.tutor, good=0.85)
DICE = Script(program=tables.dice, good=-2.5)
SEALS = Script(program=making.seals, good=-0.15)
GLAZE = Script(program=making.glaze, good=-0.4)
TWINS = Script(program=making.twins, good=0.55)
REEF = Script(program=making.reef, good=0.9)
TAXI = Script(program=worlds.taxi, good=6.5)
DRAINS = Script(program=worlds.drains, good=0.8)
MEMBRANE = Script(program=worlds.membrane, good=-0.2)


LOOPS: tuple[Plant, ...] = (
    # Wrong targets or inputs
    MELODIES.plant(
        "melodies never hear the end",
        named(WORSE, rf"{STUCK}|{GAP}|\bend\b|ignor|mask", rf"\bend\b|ignor|mask|padding|{INPUTS}"),
        unheard="padding and end",
    ),
    DEMAND.plant(
        "demand seconds since 1970",
        named(WORSE, rf"{STUCK}|{GAP}|range|scale|{DEAD}", rf"range|scale|column|{INPUTS}"),
        clock="unix",
    ),
    ACRES.plant(
        "acres masks resized as pictures",
        named(WORSE, rf"{STUCK}|{GAP}|mask|class|interpolat|resiz", rf"mask|nearest|interpolat|resiz|{INPUTS}"),
        resized="as pictures",
    ),
    BUOYS.plant(
        "buoys columns for rows",
        named(WORSE, rf"{STUCK}|{GAP}|\brows?\b|column|swap|exchang", rf"\brows?\b|column|swap|coordinate|{INPUTS}"),
        cells="column, row",
    ),
    MORTAR.plant(
        "mortar strengths cut to whole numbers",
        named(WORSE, rf"{STUCK}|{GAP}|integer|targets? (are|is) constant", rf"integer|float|dtype|round|{PAIRS}"),
        kept_as="int64",
    ),
    MORTAR.plant(
        "mortar standardized by rows",
        named(WORSE, rf"{STUCK}|{GAP}|\brows?\b|\baxis\b|input", rf"\baxis\b|\brows?\b|column|\bdim\b|{INPUTS}"),
        standardized="rows",
    ),
    CLICKS.plant(
        "clicks identities in ten buckets",
        named(
            WORSE, rf"{STUCK}|{GAP}|bucket|hash|collision|capacity|underfit", rf"bucket|hash|collision|table|{INPUTS}"
        ),
        buckets=10,
    ),
    TUTOR.plant(
        "tutor sees what was not prepared",
        named(WORSE, rf"{STUCK}|{GAP}|conflict|disagree|teacher|tutor", rf"teacher|tutor|{INPUTS}"),
        shown="raw",
    ),
    GLAZE.plant(
        "glaze made kinds judged as others",
        named(WORSE, rf"{STUCK}|{COLLAPSE}|condition|label|critic|net_d", rf"condition|label|same|critic|{INPUTS}"),
        told="the real ones",
    ),
    TWINS.plant(
        "twins the same view twice",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|augment|same view|identical|shortcut|trivial|easy|saturat|too low",
            rf"augment|view|shortcut|{INPUTS}",
        ),
        seen="together",
    ),
    REEF.plant(
        "reef half of the normals inward",
        named(WORSE, rf"{STUCK}|{LOUD}|normals?\b|orient|\bsigns?\b", rf"normals?\b|orient|\bsigns?\b|flip|{INPUTS}"),
        inward=0.5,
    ),
    DRAINS.plant(
        "drains messages upstream",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|direction|\bedges?\b|exchang|underfit",
            rf"direction|\bedges?\b|source|revers|swap|{INPUTS}",
        ),
        direction="up",
    ),
    DRAINS.plant(
        "drains numbered anew in each",
        named(WORSE, rf"{STUCK}|{GAP}|offset|\bedges?\b|graph", rf"offset|\bedges?\b|batch|index|{INPUTS}"),
        numbered="anew",
    ),
    TAXI.plant(
        "taxi memory of references",
        named(
            WORSE, rf"{STUCK}|{GAP}|reward|return|alias|same state|memory|replay", rf"copy|alias|clone|replay|{INPUTS}"
        ),
        stored="references",
    ),
    TAXI.plant(
        "taxi rewards cut to signs",
        named(WORSE, rf"{STUCK}|{GAP}|reward|return|clip", rf"reward|return|clip|scal|{PAIRS}"),
        rewards="signs",
    ),
    MEMBRANE.plant(
        "membrane held everywhere",
        named(WORSE, rf"{STUCK}|{LOUD}|boundary|\bedge\b", rf"boundary|\bedge\b|weight|points|{INPUTS}"),
        edge="anywhere",
    ),
    # Training sees the answer
    DEMAND.plant(
        "demand means that look ahead",
        named(SEEN, rf"{GAP}|leak|{STUCK}|future|ahead", rf"leak|future|causal|window|trailing|split|{INPUTS}"),
        smooth="centered",
    ),
    # Training and evaluation differ
    MELODIES.plant(
        "melodies padded on the left",
        named(MISMATCH, rf"{GAP}|{STUCK}|padd|prompt", rf"padd|same|mask|evaluat|prompt|split|{INPUTS}"),
        padded="left",
    ),
    CALLS.plant(
        "calls kinds numbered by the folder",
        named(MISMATCH, rf"{GAP}|{STUCK}|label|class|mapping", rf"mapping|class|same|evaluat|split|{INPUTS}"),
        numbered="anew",
    ),
    CALLS.plant(
        "calls hidden nearly whole",
        named(MISMATCH, rf"{GAP}|{STUCK}|augment|mask|underfit|hidden", rf"augment|mask|weaker|less|same|{INPUTS}"),
        hidden=(18, 20),
    ),
    BUOYS.plant(
        "buoys measured from the middle",
        named(MISMATCH, rf"{GAP}|{STUCK}|offset|decod|encod|half a cell", rf"offset|decod|encod|same|evaluat|{INPUTS}"),
        measured_from="middle",
    ),
    CLICKS.plant(
        "clicks of few offers without a click",
        named(
            MISMATCH,
            rf"{GAP}|{STUCK}|calibrat|resampl|under.?sampl|prior|balance",
            rf"calibrat|sampl|prior|balance|same|split|evaluat|{INPUTS}",
        ),
        negatives=0.07,
    ),
    SEALS.plant(
        "seals velocity taken for noise",
        named(MISMATCH, rf"{GAP}|{STUCK}|sampler|predict|{BLOWN}", rf"sampler|predict|velocity|same|evaluat|{INPUTS}"),
        read_as="noise",
    ),
    # Weights of the terms
    ACRES.plant(
        "acres what is rare counts less",
        named(TERMS, rf"{LOUD}|{STUCK}|{GAP}|class|rare|frequen", r"weight|class|frequen|balance"),
        weighted="upside down",
    ),
    # Parts that do not learn
    ACCENTS.plant(
        "accents body unfrozen too late for the optimizer",
        named(SILENT, rf"{HELD}|body|layers?\b|tuned|{STUCK}", r"optimizer|param|group|unfre|requires_grad"),
        held_by="at the start",
    ),
    ACCENTS_MEAN.plant(
        "accents average in sixteen bits",
        named(
            NUMBERS,
            rf"{GAP}|{STUCK}|average|bfloat16|round|precision|{HELD}",
            r"float32|bfloat16|precision|round|decay|average|dtype",
        ),
        average="bfloat16",
    ),
    # Wrong architecture
    MORTAR.plant(
        "mortar one number normalized",
        named(SHAPE, rf"{STUCK}|{DEAD}|layer ?norm|normali[sz]", rf"norm|last layer|output|head|{INPUTS}"),
        output="normalized",
    ),
    TUTOR.plant(
        "tutor compared with chances, not logarithms",
        named(SHAPE, rf"{STUCK}|{GAP}|negative|below zero|\blog", r"\blog|kl_div|softmax|logit|\bsign"),
        given="chances",
    ),
    # Rates and schedules
    CALLS.plant(
        "calls cycle up to .3",
        Named(
            kind=RATES,
            cause=rf"{RATE}|cycle|{BLOWN}|{DEAD}|{STUCK}",
            fixes=(Fix(words=rf"{RATE}|cycle|max_lr|warm", rate="lr"),),
        ),
        lr=0.3,
    ),
    # Overfitting
    CLICKS.plant(
        "clicks fourteen passes",
        named(OVERFIT, rf"{GAP}|overtrain|best", r"stop|early|fewer|earlier|regulari|decay|smaller|best|dropout|data"),
        passes=14,
        width=24,
    ),
    # Numbers of the machine
    CALLS.plant(
        "calls silence divided by its spread",
        named(
            NUMBERS,
            r"not finite|non.?finite|\bNaN\b|\bInf\b|divi|zero",
            r"epsilon|\beps\b|clamp|divi|zero|spread|std|input|sample|data|normali",
        ),
        epsilon=0.0,
    ),
    MEMBRANE.plant(
        "membrane differences too fine for float32",
        named(
            NUMBERS,
            rf"{STUCK}|{BLOWN}|nois|round|precision|cancel|finite differ|equation|{LOUD}",
            r"precision|float64|double|round|differ|autograd|larger|step|cancel",
        ),
        apart=1e-5,
    ),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)
