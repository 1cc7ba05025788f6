"""Plants of set h."""

from verdict_runs.cases import Plant
from verdict_runs.phrases import (
    BACKWARD,
    BLOWN,
    COLLAPSE,
    DEAD,
    GAP,
    INPUTS,
    LOUD,
    MISMATCH,
    NUMBERS,
    PAIRS,
    RATE,
    RATES,
    SEEN,
    SILENT,
    SMALL,
    STUCK,
    TERMS,
    WORSE,
    named,
)
from verdict_runs.scripts import Script

from . import making, relations, tables, vision, words
from .pipelines import PIPELINES

SHAPE = "wrong architecture"

MOTHS = Script(program=vision.moths, good=0.85)
MOTHS_IN_PARTS = Script(program=vision.moths, good=0.85, settings={"exposures": 8, "at_once": 6})
CROWDS = Script(program=vision.crowds, good=-1.0)
ORGANS = Script(program=vision.organs, good=0.65)
CURRENTS = Script(program=vision.currents, good=-1.0)
POSTCARD = Script(program=vision.postcard, good=22.0)
PIECES = Script(program=words.pieces, good=0.85)
DIALECT = Script(program=words.dialect, good=0.85)
WHALES = Script(program=words.whales, good=0.85)
LEDGER = Script(program=tables.ledger, good=0.2)
HARVEST = Script(program=tables.harvest, good=0.65)
SURGE = Script(program=tables.surge, good=-0.65)
TIDES = Script(program=tables.tides, good=0.9)
ROADS = Script(program=relations.roads, good=0.75)
PLUMAGE = Script(program=relations.plumage, good=0.85)
GLANCES = Script(program=relations.glances, good=0.87)
MINT = Script(program=making.mint, good=-0.03)
DUNES = Script(program=making.dunes, good=-0.035)
SHELLS = Script(program=making.shells, good=-0.2)
GLIDER = Script(program=making.glider, good=-0.25)
WELL = Script(program=making.well, good=-0.05)


LOOPS: tuple[Plant, ...] = (
    # Wrong targets or inputs
    MOTHS.plant(
        "moths erased in memory",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|augment|in.?place|erase|blank|inputs? (change|differ|drift)|constant",
            rf"augment|in.?place|clone|copy|dataset|{INPUTS}",
        ),
        in_place=True,
    ),
    MOTHS.plant(
        "moths sampler with a weight per species",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|sampler|same (samples?|pictures?|batch)|repeat|distinct|"
            r"few (samples|pictures)|never (drawn|seen)",
            rf"sampler|weights?|draw|repeat|shuffl|more data|{INPUTS}",
        ),
        sampler="species",
    ),
    CROWDS.plant(
        "crowds density shrunk without its sum",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|scale|magnitude|unit|target|tiny|small|interpolat|resiz",
            rf"scale|unit|interpolat|resiz|sum|{PAIRS}",
        ),
        shrunk="by interpolation",
    ),
    ORGANS.plant(
        "organs what nobody annotated is a kind",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|ignore|unlabel|annotat|class|label|mask|imbalance",
            rf"ignore_index|ignor|unlabel|annotat|class|mask|{PAIRS}",
        ),
        unknown="clamped",
    ),
    CURRENTS.plant(
        "currents pixels on a grid of one",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|scale|unit|range|coordinate|grid|outside|{DEAD}",
            rf"scale|unit|range|coordinate|grid|pixel|normali[sz]|{INPUTS}",
        ),
        grid="of pixels",
    ),
    POSTCARD.plant(
        "postcard grid of the other order",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|order|index|transpos|swap|coordinate|grid|axis|axes",
            rf"order|indexing|transpos|swap|coordinate|grid|axis|axes|reshape|{INPUTS}",
        ),
        grid="columns first",
    ),
    PIECES.plant(
        "pieces tags laid on in turn",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|align|shift|tag|label|token|piece",
            rf"align|shift|word_ids|token|piece|offset|{PAIRS}",
        ),
        laid_on="in turn",
    ),
    WHALES.plant(
        "whales labels repeated in turn",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|align|order|label|repeat|interleav|mislabel",
            rf"align|order|repeat|interleav|label|{PAIRS}",
        ),
        repeated="in turn",
    ),
    TIDES.plant(
        "tides gaps closed",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|missing|gap|drop|irregular|time|distribution",
            rf"missing|gap|drop|fill|interpolat|resampl|time|same|{INPUTS}",
        ),
        gaps="dropped",
    ),
    PLUMAGE.plant(
        "plumage pushed away from itself",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|{COLLAPSE}|negative|positive|margin|conflict|mining",
            rf"negative|positive|mining|mask|same|margin|label|{PAIRS}",
        ),
        negatives="all",
    ),
    DUNES.plant(
        "dunes points far larger than the noise",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|scale|range|magnitude|unit|input|large",
            rf"scale|range|normali[sz]|standardi[sz]|unit|{INPUTS}",
        ),
        unit=0.03,
    ),
    WELL.plant(
        "well slopes of the scaled place",
        named(
            WORSE,
            rf"{STUCK}|{LOUD}|scale|unit|chain|derivative|equation|residual",
            r"scale|unit|chain|derivative|equation|residual|weight|normali[sz]",
        ),
        slopes="as scaled",
    ),
    # Training sees the answer
    LEDGER.plant(
        "ledger means with the row itself",
        named(
            SEEN,
            rf"{GAP}|leak|{STUCK}|target|encod|too good|shortcut",
            rf"leak|out.of.fold|fold|target|encod|leave|split|{INPUTS}",
        ),
        encoded="all rows",
    ),
    # Training and evaluation differ
    LEDGER.plant(
        "ledger logarithms taken for dollars",
        named(
            MISMATCH,
            rf"{GAP}|{STUCK}|\blog|exp\b|unit|scale|transform",
            r"\blog|exp\b|unit|scale|transform|invers|same|evaluat",
        ),
        answers="logarithms",
    ),
    TIDES.plant(
        "tides changes taken for levels",
        named(
            MISMATCH,
            rf"{GAP}|{STUCK}|differenc|change|level|unit|scale|offset|invers",
            rf"differenc|change|level|add|cumsum|offset|invers|same|evaluat|{PAIRS}",
        ),
        answers="changes",
    ),
    MINT.plant(
        "mint always the same noise",
        named(
            MISMATCH,
            rf"{GAP}|{STUCK}|{COLLAPSE}|same (noise|batch|inputs?|sample)|repeat|fixed|constant",
            rf"noise|sample|draw|latent|random|resampl|{INPUTS}",
        ),
        noise="of the pictures",
    ),
    # Wrong sign or order
    SURGE.plant(
        "surge quantiles upside down",
        named(
            BACKWARD,
            rf"{STUCK}|{GAP}|sign|revers|swap|quantile|coverage|order|opposite|declin|worse|fell|rises?|above",
            rf"sign|revers|swap|quantile|order|same|evaluat|{PAIRS}",
        ),
        missed="below",
    ),
    MOTHS_IN_PARTS.plant(
        "moths gradients cleared before each exposure",
        named(
            BACKWARD,
            rf"{STUCK}|{SMALL}|accumulat|zero_grad|clear|lost|discard|gradient",
            rf"accumulat|zero_grad|clear|order|{RATE}",
        ),
        cleared="before each batch",
    ),
    # Rates and schedules
    DIALECT.plant(
        "dialect new head at the rate of the old body",
        named(RATES, rf"{SMALL}|{STUCK}|head|classifier|group", rf"{RATE}|group|head|classifier|name"),
        head="fc",
    ),
    LEDGER.plant(
        "ledger patience of six batches",
        named(
            RATES,
            rf"{STUCK}|{SMALL}|early|stopp?ed|ended|still (falling|improv)|patience|short|under.?(fit|train)|few steps",
            r"early|stop|patience|longer|more (steps|epochs)|continue|epoch",
        ),
        patience="batches",
    ),
    # Weights of the terms
    HARVEST.plant(
        "harvest crops weigh themselves away",
        named(
            TERMS,
            rf"{LOUD}|{BLOWN}|negative|below zero|learned weight|{STUCK}|minimi[sz]",
            r"weight|regulari[sz]|bound|positive|negative|softplus|clamp|constrain|sign",
        ),
        weighed="freely",
    ),
    # Wrong architecture
    HARVEST.plant(
        "harvest one head five times",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|shar(e|ed|ing)|same (module|parameter|head)|identical|duplicate|tied|{LOUD}|capacity",
            r"head|shar(e|ed)|separate|copy|duplicate|own|tied|module",
        ),
        heads="one",
    ),
    POSTCARD.plant(
        "postcard weights that begin as in any network",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|initiali[sz]|frequenc|{DEAD}|{BLOWN}|gain",
            rf"init|frequenc|omega|siren|{RATE}|lower|smaller",
        ),
        begun="plain",
    ),
    SHELLS.plant(
        "shells noise times the logarithm of the variance",
        named(
            NUMBERS,
            rf"{STUCK}|{GAP}|{LOUD}|{COLLAPSE}|variance|logvar|divergence|latent|posterior|\bkl\b",
            r"variance|logvar|exp\b|std|reparam|divergence|latent|\bkl\b",
        ),
        spread="logarithm",
    ),
    # Parts that do not learn
    GLANCES.plant(
        "glances no side held still",
        named(
            SILENT, rf"{COLLAPSE}|{STUCK}|constant|identical|trivial", r"detach|stop|gradient|target|collaps|predictor"
        ),
        still=False,
    ),
    GLIDER.plant(
        "glider explores a thousandth",
        named(
            SILENT,
            rf"{STUCK}|{COLLAPSE}|explor|\bstd\b|spread|reward|return|variance|{LOUD}|{BLOWN}",
            r"explor|std|spread|entropy|noise|larger|raise|deviation",
        ),
        explores=0.001,
    ),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)
