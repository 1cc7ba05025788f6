"""Plants of set f."""

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
    SCHEDULE,
    SILENT,
    SMALL,
    STUCK,
    TERMS,
    WORSE,
    named,
)
from verdict_runs.scripts import Fix, Named, Script

from . import choices, fields, relations, sequences, signals
from .pipelines import PIPELINES

LEAK = "training sees the answer"
BACKWARD = "wrong sign or order"
SHAPE = "wrong architecture"

# What a reader would accept as words for a fact. The words for a symptom are in all causes of their kind.
FELL = r"sign|declin|fell|falls|worse|invert|opposite|negat"
PAIRS = r"target|label|truth|annotation|pair|align|shuffl|order|data|mapping"
INPUTS = rf"{PAIRS}|input|feature|preprocess|transform|normali[sz]|scal|augment"
GRAPH = r"detach|no_grad|item\(\)|gradient|graph|\.data\b|requires_grad|froze"

HOSPITAL = Script(program=sequences.hospital, good=0.7)
RIVER = Script(program=sequences.river, good=0.9)
BASKET = Script(program=sequences.basket, good=0.3)
STRESS = Script(program=sequences.stress, good=0.7)
DENOISE = Script(program=signals.denoise, good=4.0)
RADAR = Script(program=signals.radar, good=0.6)
FOLIAGE = Script(program=signals.foliage, good=0.6)
BIRDS = Script(program=signals.birds, good=0.7)
FLATLAND = Script(program=fields.flatland, good=20.0)
HEAT = Script(program=fields.heat, good=-0.2)
RINGS = Script(program=fields.diffusion, good=-0.03)
KRIGE = Script(program=fields.krige, good=0.7)
LINKS = Script(program=relations.links, good=0.7)
ARGON = Script(program=relations.argon, good=0.8)
CAPTIONS = Script(program=relations.captions, good=0.5)
WARDS = Script(program=relations.wards, good=0.7)
LANE = Script(program=choices.lane, good=-0.5)
BALANCE = Script(program=choices.balance, good=45.0)
LOANS = Script(program=choices.loans, good=0.7)
FEW = Script(program=choices.few, good=0.7)
RING = Script(program=choices.ring, good=-0.1)
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
        late=40,
    ),
    DENOISE.plant(
        "denoise the noise for the speech",
        named(WORSE, rf"{STUCK}|{GAP}|{FELL}", rf"sign|clean|mask|{INPUTS}"),
        loss_of="noise",
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
            LEAK, rf"{GAP}|leak|{STUCK}|identity|copy|off by", rf"leak|shift|off by|index|copy|split|evaluat|{INPUTS}"
        ),
        target="last",
    ),
    RADAR.plant(
        "radar bytes that overflow",
        named(WORSE, rf"{GAP}|{STUCK}|range|overflow|wrap|augment", rf"range|byte|overflow|wrap|clamp|same|{INPUTS}"),
        brighter=200,
    ),
    FOLIAGE.plant(
        "leaves cut into rows",
        named(WORSE, rf"{STUCK}|{GAP}|shape|patch", rf"view|reshape|patch|permut|{INPUTS}"),
        cut="view",
    ),
    FLATLAND.plant(
        "flatland pictures sorted by name",
        named(WORSE, rf"{STUCK}|{GAP}|order|sort|pose|camera|inconsisten", rf"sort|pose|camera|name|{INPUTS}"),
        files="by name",
    ),
    FLATLAND.plant(
        "flatland rays end too early",
        named(WORSE, rf"{STUCK}|{GAP}|\bfar\b|range|bound|cover", rf"\bfar\b|range|bound|near|ray|{INPUTS}"),
        far=1.7,
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
    HEAT.plant(
        "heat second derivative by time",
        named(
            WORSE, rf"{STUCK}|{LOUD}|derivativ|equation|residual|{GAP}", rf"derivativ|equation|residual|weight|{INPUTS}"
        ),
        wall="t",
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
    RINGS.plant(
        "rings without a root",
        named(MISMATCH, rf"{GAP}|{STUCK}|scale|variance", rf"scale|sqrt|root|same|evaluat|variance|schedule|{INPUTS}"),
        root=False,
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
    HOSPITAL.plant(
        "hospital compared with the dead",
        named(BACKWARD, rf"{STUCK}|{FELL}|risk|order|sort|{GAP}", rf"risk|sort|sign|{INPUTS}"),
        at_risk="earlier",
    ),
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
    LINKS.plant(
        "links messages along those asked for",
        named(LEAK, rf"{GAP}|leak|{STUCK}", rf"leak|edge|link|message|split|{INPUTS}"),
        sees="all",
    ),
    LANE.plant(
        "lane sees its last command",
        named(LEAK, rf"{GAP}|leak|{STUCK}|copy|shortcut|{FELL}", rf"leak|last|shortcut|copy|split|{INPUTS}"),
        sees_last=True,
    ),
    LOANS.plant(
        "loans means that hold their own target",
        named(LEAK, rf"{GAP}|leak|{STUCK}", rf"leak|encod|column|split|regulari|{INPUTS}"),
        encoded="own",
    ),
    # Weights of the terms
    KRIGE.plant(
        "krige without its determinant",
        named(
            TERMS,
            rf"{BLOWN}|{LOUD}|determinant|{STUCK}|{COLLAPSE}|{GAP}|{FELL}",
            r"weight|determinant|term|regulari|bound|noise",
        ),
        determinant=0.0,
    ),
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
    BALANCE.plant(
        "balance steps of a thousandth",
        named(TERMS, rf"{STUCK}|{SMALL}|clip|reward|return", rf"clip|{RATE}|epsilon"),
        clip=1e-5,
        lr=1e-4,
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
    WARDS.plant(
        "wards never get what was joined",
        named(SILENT, rf"{GAP}|{STUCK}|server|client|average", rf"server|client|average|copy|join|broadcast|{HELD}"),
        returned=False,
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
    BIRDS.plant(
        "birds rate x200",
        Named(kind=RATES, cause=rf"{RATE}|{BLOWN}|{DEAD}|update", fixes=(Fix(words=RATE, rate="lr"),)),
        lr=10.0,
    ),
    SMS.plant(
        "messages decay counted in epochs",
        named(RATES, rf"{SMALL}|zero|{STUCK}", rf"{SCHEDULE}|epoch|steps"),
        counted="epochs",
    ),
    WARDS.plant(
        "wards summed",
        named(
            RATES, rf"{BLOWN}|{STUCK}|weights|sum|norm|average", rf"average|mean|sum|divi|weights|join|{RATE}|{INPUTS}"
        ),
        joined="sum",
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
    FOLIAGE.plant(
        "leaves scaled as other pictures",
        named(MISMATCH, rf"{GAP}|{STUCK}|scale|mean|normali", rf"same|evaluat|split|{INPUTS}"),
        scaled=True,
    ),
    DENOISE.plant(
        "denoise power for logarithms",
        named(MISMATCH, rf"{GAP}|{STUCK}|\blog|scale", rf"\blog|same|evaluat|split|{INPUTS}"),
        compress="training",
    ),
    STRESS.plant(
        "stress transitions transposed",
        named(
            MISMATCH, rf"{GAP}|{STUCK}|transition|transpos", rf"transition|transpos|decod|same|evaluat|split|{INPUTS}"
        ),
        transposed=True,
    ),
    LANE.plant(
        "lane commands in units of their spread",
        named(MISMATCH, rf"{GAP}|{STUCK}|unit|scale|spread", rf"unit|same|evaluat|split|{INPUTS}"),
        scaled_back=False,
    ),
    BALANCE.plant(
        "balance judged on raw angles",
        named(MISMATCH, rf"{GAP}|{STUCK}|observation|scale|normali", rf"observation|same|evaluat|split|{INPUTS}"),
        judged="raw",
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
