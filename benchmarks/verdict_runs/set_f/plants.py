"""Plants of set f."""

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
    RATES,
    SCHEDULE,
    SEEN,
    SILENT,
    SMALL,
    STUCK,
    TERMS,
    WORSE,
    named,
)
from verdict_runs.scripts import Script

from . import choices, fields, relations, sequences, signals
from .pipelines import PIPELINES

SHAPE = "wrong architecture"

# What a reader would accept as words for a fact. The words for a symptom are in all causes of their kind.
FELL = r"sign|declin|fell|falls|worse|invert|opposite|negat"
GRAPH = r"detach|no_grad|item\(\)|gradient|graph|\.data\b|requires_grad|froze"

HOSPITAL = Script(program=sequences.hospital, good=0.6)
RIVER = Script(program=sequences.river, good=0.92)
BASKET = Script(program=sequences.basket, good=0.77)
STRESS = Script(program=sequences.stress, good=0.7)
DENOISE = Script(program=signals.denoise, good=7.0)
RADAR = Script(program=signals.radar, good=0.3)
FOLIAGE = Script(program=signals.foliage, good=0.6)
BIRDS = Script(program=signals.birds, good=0.7)
FLATLAND = Script(program=fields.flatland, good=21.5)
HEAT = Script(program=fields.heat, good=-0.5)
RINGS = Script(program=fields.diffusion, good=-0.05)
KRIGE = Script(program=fields.krige, good=0.8)
LINKS = Script(program=relations.links, good=0.75)
ARGON = Script(program=relations.argon, good=0.6)
CAPTIONS = Script(program=relations.captions, good=0.5)
WARDS = Script(program=relations.wards, good=0.8)
LANE = Script(program=choices.lane, good=-0.6)
BALANCE = Script(program=choices.balance, good=45.0)
LOANS = Script(program=choices.loans, good=0.7)
FEW = Script(program=choices.few, good=0.7)
RING = Script(program=choices.ring, good=-0.15)
PARITY = Script(program=choices.parity, good=0.95)
SMS = Script(program=choices.sms, good=0.7)


LOOPS: tuple[Plant, ...] = (
    # Wrong targets or inputs
    HOSPITAL.plant(
        "hospital deaths and discharges exchanged",
        named(WORSE, rf"{STUCK}|{FELL}|censor|event|{GAP}", rf"censor|event|{INPUTS}"),
        swapped=True,
    ),
    BASKET.plant(
        "basket newest item first",
        named(MISMATCH, rf"{GAP}|{STUCK}|order|revers", rf"order|revers|same|evaluat|split|{INPUTS}"),
        newest="first",
    ),
    BASKET.plant(
        "basket softmax before the loss",
        named(SHAPE, rf"{STUCK}|softmax|saturat|{DEAD}|uniform", rf"softmax|logit|activation|saturat|{INPUTS}"),
        softmax=True,
    ),
    DENOISE.plant(
        "denoise recordings out of step",
        named(WORSE, rf"{STUCK}|{GAP}|align|delay|shift|lag", rf"align|delay|shift|lag|{INPUTS}"),
        late=90,
    ),
    RADAR.plant(
        "radar films viewed, not permuted",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|axis|axes|shape|permut|transpos",
            rf"axis|axes|view|reshape|permut|transpos|{INPUTS}",
        ),
        layout="viewed",
    ),
    RADAR.plant(
        "radar last picture for the next",
        named(
            SEEN, rf"{GAP}|leak|{STUCK}|identity|copy|off by", rf"leak|shift|off by|index|copy|split|evaluat|{INPUTS}"
        ),
        target="last",
    ),
    RADAR.plant(
        "radar bytes that overflow",
        named(WORSE, rf"{GAP}|{STUCK}|range|overflow|wrap|augment", rf"range|byte|overflow|wrap|clamp|same|{INPUTS}"),
        brighter=200,
    ),
    FLATLAND.plant(
        "flatland pictures sorted by name",
        named(WORSE, rf"{STUCK}|{GAP}|order|sort|pose|camera|inconsisten", rf"sort|pose|camera|name|{INPUTS}"),
        files="by name",
    ),
    FLATLAND.plant(
        "flatland without an encoding",
        named(
            SHAPE,
            rf"{STUCK}|encod|frequenc|capacity|underfit|blur",
            rf"encod|frequenc|capacity|wider|deeper|larger|{INPUTS}",
        ),
        octaves=0,
    ),
    HEAT.plant(
        "heat place for time",
        named(WORSE, rf"{STUCK}|{GAP}|column|exchang|swap|{LOUD}", rf"column|coordinate|swap|{INPUTS}"),
        swapped=True,
    ),
    RINGS.plant(
        "rings other noise than was added",
        named(WORSE, rf"{STUCK}|noise", rf"noise|{INPUTS}"),
        noise="other",
    ),
    RINGS.plant(
        "rings time never told in training",
        named(
            MISMATCH, rf"{GAP}|{STUCK}|time|{DEAD}|unused|embedding", rf"time|same|evaluat|embedding|{GRAPH}|{INPUTS}"
        ),
        told=False,
    ),
    KRIGE.plant(
        "krige coordinates in meters",
        named(WORSE, rf"{STUCK}|{GAP}|scale|unit|{DEAD}|length|vanish", rf"unit|length|scale|init|{INPUTS}"),
        unit=1000.0,
    ),
    LINKS.plant(
        "links strangers drawn from the links",
        named(WORSE, rf"{STUCK}|negative", rf"negative|sampl|{INPUTS}"),
        negatives="links",
    ),
    CAPTIONS.plant(
        "captions loaders shuffled apart",
        named(WORSE, rf"{STUCK}|pair|{GAP}|{COLLAPSE}", rf"pair|{INPUTS}"),
        order="apart",
    ),
    LOANS.plant(
        "loans gaps of minus 99999",
        named(
            WORSE,
            rf"{STUCK}|{BLOWN}|missing|sentinel|outlier|range|scale|{GAP}|{DEAD}",
            rf"missing|sentinel|outlier|range|clip|impute|{INPUTS}",
        ),
        missing=-99999.0,
    ),
    # Wrong sign or order
    ARGON.plant(
        "argon forces uphill",
        named(BACKWARD, rf"{STUCK}|{FELL}|conflict|oppos|{LOUD}|force", rf"sign|force|negat|weight|{PAIRS}"),
        sign=1.0,
    ),
    BALANCE.plant(
        "balance paid for falling",
        named(BACKWARD, rf"{STUCK}|{FELL}|reward|return", rf"sign|reward|return|{PAIRS}"),
        reward="falling",
    ),
    LOANS.plant(
        "loans keeps the worst epoch",
        named(
            BACKWARD,
            rf"{FELL}|{GAP}|drop|restor|best|jump|worst|earlier",
            r"best|mode|restor|checkpoint|compar|sign|load",
        ),
        keeps="worst",
    ),
    # Training sees the answer
    LANE.plant(
        "lane sees the wheel turned",
        named(SEEN, rf"{GAP}|leak|{STUCK}|copy|shortcut|{FELL}", rf"leak|last|shortcut|copy|split|{INPUTS}"),
        wheel=True,
    ),
    # Weights of the terms
    FEW.plant(
        "few labels unlabeled x30 at once",
        named(
            TERMS,
            rf"{LOUD}|pseudo|unlabel|{COLLAPSE}|{STUCK}|{GAP}|{BLOWN}",
            r"weight|pseudo|unlabel|ramp|threshold|warm",
        ),
        unlabeled=30.0,
        threshold=0.0,
        ramp=0,
    ),
    # Parts that do not learn
    BASKET.plant(
        "basket vectors frozen by default",
        named(SILENT, rf"{HELD}|{DEAD}|items|embedding|{STUCK}", rf"{GRAPH}|freeze|optimizer|embedding"),
        pretrained=True,
    ),
    FOLIAGE.plant(
        "leaves blocks in a plain list",
        named(
            SILENT, rf"{HELD}|{DEAD}|block|register|parameter|{STUCK}", r"ModuleList|optimizer|register|parameter|list"
        ),
        listed=True,
    ),
    HEAT.plant(
        "heat conductivity in no optimizer",
        named(SILENT, rf"{HELD}|log_k|material|conductivity", r"optimizer|parameter|add_param_group"),
        held_by="nothing",
    ),
    RING.plant(
        "ring two optimizers of one critic",
        named(SILENT, rf"{HELD}|netG|{DEAD}|{STUCK}|two optimizers|both", r"optimizer|parameters|netG|step"),
        holds="critic",
    ),
    LINKS.plant(
        "links sixteen rounds",
        named(
            SHAPE, rf"{DEAD}|{STUCK}|smooth|depth|vanish", r"residual|skip|depth|layer|round|normali|activation|init"
        ),
        depth=16,
        skip=False,
    ),
    # Wrong architecture
    RIVER.plant(
        "river keeps a tenth",
        named(SHAPE, rf"dropout|{STUCK}|{GAP}|underfit", r"dropout|regulari|capacity"),
        drop=0.95,
    ),
    RIVER.plant(
        "river chunks shuffled with their state",
        named(WORSE, rf"{STUCK}|{GAP}|state|order|shuffl", rf"state|order|carr|hidden|{INPUTS}"),
        order="shuffled",
    ),
    # Rates and schedules
    SMS.plant(
        "messages decay counted in epochs",
        named(RATES, rf"{SMALL}|zero|{STUCK}", rf"{SCHEDULE}|epoch|steps"),
        counted="epochs",
    ),
    # Training and evaluation differ
    BIRDS.plant(
        "birds average without its norms",
        named(
            MISMATCH,
            rf"{GAP}|{STUCK}|buffer|norm|statistic|average",
            r"buffer|norm|statistic|update_bn|average|use_buffers",
        ),
        average="without norms",
    ),
    BIRDS.plant(
        "birds norms that hardly move",
        named(MISMATCH, rf"{GAP}|{STUCK}|norm|statistic|momentum", r"momentum|norm|statistic|eval|same|split"),
        momentum=0.001,
    ),
    STRESS.plant(
        "stress transitions transposed",
        named(
            MISMATCH, rf"{GAP}|{STUCK}|transition|transpos", rf"transition|transpos|decod|same|evaluat|split|{INPUTS}"
        ),
        transposed=True,
    ),
    # Numbers of the machine
    STRESS.plant(
        "stress exponentials that overflow",
        named(NUMBERS, rf"{BLOWN}|\bexp|\blog", r"\bexp|log.?sum|overflow|\blog|clamp|scale|normali|stable|max"),
        stable=False,
        scale=30.0,
    ),
    ARGON.plant(
        "argon root of zero",
        named(NUMBERS, rf"{BLOWN}|sqrt|root", r"sqrt|root|epsilon|\beps\b|clamp|divi|zero|mask|distance"),
        itself=True,
    ),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)
