"""Plants of set i, each beside the address of a report of the same mistake."""

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

SHAPE = "wrong loss or architecture"
PROCESS = "memory, data and time"

MUSHROOMS = Script(program=vision.mushrooms, good=0.85)
PARCELS = Script(program=vision.parcels, good=0.8)
LESIONS = Script(program=vision.lesions, good=0.7)
COMPASS = Script(program=vision.compass, good=-6.0)
ENGINE = Script(program=words.engine, good=-1.0)
REVIEWS = Script(program=words.reviews, good=0.85)
CITIES = Script(program=words.cities, good=0.9)
FABLES = Script(program=words.fables, good=0.8)
SPIRALS = Script(program=making.spirals, good=-0.05)
COINS = Script(program=making.coins, good=-0.5)
POSTURES = Script(program=making.postures, good=-0.05)
GROTTO = Script(program=making.grotto, good=20.0)
PEBBLE = Script(program=making.pebble, good=-0.08)
CELLAR = Script(program=tables.cellar, good=0.8)
FERRY = Script(program=tables.ferry, good=0.7)
DEPOT = Script(program=tables.depot, good=0.7)
READING = Script(program=tables.depot, good=-0.4, settings={"figure": "reading", "rows": 480, "epochs": 2})
MEMORY = Script(program=tables.depot, good=-1.0, settings={"figure": "memory", "epochs": 40})
MILL = Script(program=tables.mill, good=0.75)
PARISH = Script(program=relations.parish, good=0.65)
SIGILS = Script(program=relations.sigils, good=0.8)
UNDERSTUDY = Script(program=relations.understudy, good=0.85)
FOGHORNS = Script(program=relations.foghorns, good=0.8)
KIOSK = Script(program=relations.kiosk, good=0.9)

LOOPS: tuple[Plant, ...] = (
    # Classification and detection.
    # One output and the loss for several classes: https://discuss.pytorch.org/t/two-output-nodes-for-binary-classification/58703
    MUSHROOMS.plant(
        "mushrooms one output for two kinds",
        named(
            SHAPE,
            rf"{STUCK}|{DEAD}|exactly 0|loss is (0|zero)|zero loss|always (0|zero)|one (class|output)|single",
            rf"binary|BCE|two (outputs|logits|classes)|output|class|loss|logit|{PAIRS}",
        ),
        outputs=1,
    ),
    # Dropout is given the chance to drop, not to keep: https://discuss.pytorch.org/t/the-p-in-dropout/10698
    MUSHROOMS.plant(
        "mushrooms dropout of the share to keep",
        named(MISMATCH, rf"dropout|{STUCK}|{GAP}|{SMALL}|regulari", r"dropout|regulari|capacity"),
        drop=0.97,
    ),
    # Class 0 is the background: https://github.com/pytorch/vision/issues/1952
    PARCELS.plant(
        "parcels kinds counted from nothing",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|class 0|background|label|never (predict|found)|imbalance",
            rf"class|background|label|{PAIRS}",
        ),
        first=0,
    ),
    # Annotations in the pixels of the photo before it was shrunk: https://gitcode.net/paddlepaddle/PaddleDetection/-/merge_requests/93
    PARCELS.plant(
        "parcels sizes of the full photo",
        named(
            MISMATCH, rf"{STUCK}|{GAP}|scale|unit|pixel|large|{LOUD}", rf"scale|unit|pixel|resiz|normali[sz]|{PAIRS}"
        ),
        annotated="full",
    ),
    # Each loss overwrites the one before: https://github.com/vlfeat/matconvnet/pull/258
    PARCELS.plant(
        "parcels only the last loss",
        named(
            TERMS,
            rf"{STUCK}|{DEAD}|one (term|loss)|missing|no loss|unused|{HELD}",
            r"loss|term|sum|add|\+=|head|output",
        ),
        summed=False,
    ),
    # Dice of logits: https://discuss.pytorch.org/t/about-dice-loss-generalized-dice-loss/113863
    LESIONS.plant(
        "lesions overlap of logits",
        named(
            SHAPE,
            rf"{BLOWN}|{STUCK}|negative|below (0|zero)|unbounded|{LOUD}|{GAP}|outside",
            r"sigmoid|logit|chance|probabilit|bound|clamp|activation|dice|overlap",
        ),
        overlap_of="logits",
        mixed=False,
    ),
    # An angle as a number: https://datascience.stackexchange.com/questions/24986/parameterization-regression-of-rotation-angle
    COMPASS.plant(
        "compass degrees as a number",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|angle|circular|wrap|period|discontinu|heavy|outlier|plateau",
            rf"angle|sin|cos|circular|wrap|period|robust|{PAIRS}",
        ),
        target="number",
    ),
    # Sequences.
    # Clipping at the wrong place: https://theneuralbase.com/pytorch/learn/intermediate/gradient-exploding-gradient-clipping/
    ENGINE.plant(
        "engine clipped before there are gradients",
        named(BACKWARD, rf"{BLOWN}|{STUCK}|clip|{RATE}", rf"clip|order|after|{RATE}"),
        clip="before backward",
    ),
    # Truncation cuts what the label depends on: https://github.com/OpenBMB/MiniCPM-V/issues/662
    REVIEWS.plant(
        "reviews cut before the verdict",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|trunc|cut|length|memori[sz]",
            rf"trunc|cut|length|longer|max_length|{INPUTS}",
        ),
        longest=9,
    ),
    # More words than rows: https://github.com/huggingface/transformers/issues/12763
    REVIEWS.plant(
        "reviews with words beyond the table",
        named(
            NUMBERS, r"index|out of range|embedding|vocab|word|table|died", r"index|out of range|embedding|vocab|table"
        ),
        table=39,
    ),
    # The label to ignore is a class: https://www.codegenes.net/blog/ignore-index-pytorch
    CITIES.plant(
        "cities padding shares its label with a class",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|ignore|class 0|label|padd|imbalance|never",
            rf"ignore_index|ignor|padd|class|mask|{PAIRS}",
        ),
        ignored=0,
    ),
    # Adapters behind checkpoints of the older kind: https://github.com/huggingface/peft/issues/1142
    FABLES.plant(
        "fables adapters behind checkpoints",
        named(
            SILENT, rf"{DEAD}|{HELD}|checkpoint|requires_grad|adapter", r"checkpoint|reentrant|requires_grad|gradient"
        ),
        saved="reentrant",
    ),
    # Making things.
    # Betas are meant for a thousand steps: https://github.com/huggingface/diffusers/pull/12341
    SPIRALS.plant(
        "spirals noise of a thousand steps in forty",
        named(
            MISMATCH,
            rf"{STUCK}|{GAP}|noise|schedule|betas?\b|distribution|steps",
            r"noise|schedule|betas?\b|steps|scale",
        ),
        noise="of a thousand",
    ),
    # Parameters of both networks in one optimizer: https://github.com/heykeetae/Self-Attention-GAN/issues/48
    COINS.plant(
        "coins one optimizer for both",
        named(
            BACKWARD,
            rf"{STUCK}|{COLLAPSE}|critic|discriminator|generator|conflict|cancel|optimizer|opposite|{LOUD}",
            r"optimizer|detach|critic|discriminator|generator|separate|alternat",
        ),
        optimizers="one",
    ),
    # Range of pictures and of tanh: https://errorhandle.ai/two-questions-on-dcgan-data-normalization-and-fake-real-batch
    COINS.plant(
        "coins pictures of another range than the generator",
        named(
            MISMATCH,
            rf"{STUCK}|{GAP}|{COLLAPSE}|range|scale|tanh|saturat|critic|discriminator",
            rf"range|scale|tanh|normali[sz]|{INPUTS}",
        ),
        brightness="from 0 to 1",
    ),
    # Bounds of the rays: https://github.com/yenchenlin/nerf-pytorch/issues/63
    GROTTO.plant(
        "grotto rays end before the scene",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|near|far\b|bounds?\b|empty|density|held.?out|views?",
            rf"near|far\b|bounds?\b|ray|distance|camera|pose|{INPUTS}",
        ),
        near=0.2,
        far=1.4,
    ),
    # Cameras whose x is the other way around: https://github.com/IDLabMedia/large-lightfields-dataset/issues/2
    GROTTO.plant(
        "grotto columns from the right",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|mirror|flip|order|pose|camera|views?|inconsisten",
            rf"mirror|flip|order|camera|pose|ray|{PAIRS}",
        ),
        columns="right to left",
    ),
    # A gradient without its graph: https://nn.labml.ai/gan/wasserstein/gradient_penalty/index.html
    PEBBLE.plant(
        "pebble slope without its graph",
        named(
            SILENT,
            rf"{DEAD}|{STUCK}|{COLLAPSE}|eikonal|constant|no gradient|graph",
            r"create_graph|graph|detach|gradient|eikonal",
        ),
        graph=False,
    ),
    # Tables.
    # Kinds as numbers: https://jamesmccaffreyblog.com/2020/10/05/pytorch-multi-class-classification-using-mseloss-and-one-hot-encoded-data/
    CELLAR.plant(
        "cellar regions as a number",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|mean|class|integer|whole number|categor",
            rf"class|cross.?entropy|one.hot|categor|loss|{PAIRS}",
        ),
        target="number",
    ),
    # Sums of accumulated losses: https://github.com/ApolloResearch/e2e_sae/pull/70
    CELLAR.plant(
        "cellar accumulated sums",
        named(
            RATES, rf"{BLOWN}|{RATE}|{STUCK}|accumulat|gradient|update", rf"accumulat|divid|average|mean|clip|{RATE}"
        ),
        shares=16,
        divided=False,
        lr=0.15,
    ),
    # Scaling fitted on the test data: https://stats.stackexchange.com/questions/375165/scaling-separately-in-train-and-test-set
    FERRY.plant(
        "ferry later weeks scaled by themselves",
        named(
            MISMATCH,
            rf"{GAP}|{STUCK}|scal|standardi[sz]|normali[sz]|distribution|shift|offset",
            rf"scal|standardi[sz]|normali[sz]|same|training|evaluat|{INPUTS}",
        ),
        scaled_by="themselves",
    ),
    # LambdaLR multiplies: https://runebook.dev/en/docs/pytorch/generated/torch.optim.lr_scheduler.lambdalr
    FERRY.plant(
        "ferry rate multiplied by itself",
        named(RATES, SMALL, SCHEDULE),
        schedule="rates",
    ),
    # Fewer rows than a batch: https://github.com/PaddlePaddle/PaddleScience/pull/355
    DEPOT.plant(
        "depot fewer rows than a batch",
        named(
            PROCESS,
            rf"no steps?\b|without (a )?step|zero (steps|batches)|empty|{STUCK}|{HELD}|nothing|never|loader|batch",
            r"batch|drop_last|rows|samples|loader|data",
        ),
        batch=200,
    ),
    # A file read for each row: https://mochi-lab.vercel.app/programming/torch/data-loading
    READING.plant(
        "depot file read for each row",
        named(
            PROCESS,
            r"\bdata|loader|wait|read|slow|input|time|idle",
            r"\bdata|loader|wait|worker|cache|read|prefetch|memory",
        ),
        cached=False,
    ),
    # Hooks that keep what they see: https://theneuralbase.com/pytorch/learn/intermediate/memory-leak-detection/
    MEMORY.plant(
        "depot hooks keep everything",
        named(PROCESS, r"memory|leak|grow|hook", r"detach|item\(\)|hook|keep|clear|memory|list|tensor"),
        hooks="all",
    ),
    # The checkpoint brings the old rate back: https://github.com/pytorch/examples/issues/816
    MILL.plant(
        "mill old rate from the checkpoint",
        named(
            RESUME, rf"{SMALL}|{STUCK}|restor|checkpoint|resum|optimizer", rf"{RATE}|checkpoint|resum|optimizer|restor"
        ),
        rate_after="of the checkpoint",
    ),
    # Every job begins with the same data: https://github.com/kyutai-labs/pocket-tts/pull/287
    MILL.plant(
        "mill each job begins with the first bags",
        named(
            RESUME,
            rf"{STUCK}|{GAP}|repeat|same (batch|data|samples?)|never (seen|drawn)|order|sorted|loader|"
            r"shuffl|resum|forget",
            rf"loader|track|order|shuffl|sampler|resum|state|{INPUTS}",
        ),
        order="begins anew",
        jobs=4,
        rate_after="unchanged",
    ),
    # Graphs, pairs, teachers, sounds and games.
    # Pairs viewed instead of transposed: https://github.com/pyg-team/pytorch_geometric/issues/8735
    PARISH.plant(
        "parish edges viewed as two rows",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|edge|graph|transpos|order|neighbou?r",
            rf"edge|transpos|reshape|view|graph|order|{INPUTS}",
        ),
        edges_by="viewing",
    ),
    # Each entry is most like itself: https://github.com/open-mmlab/mmselfsup/issues/159
    SIGILS.plant(
        "sigils each one its own partner",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|{COLLAPSE}|itself|identity|diagonal|trivial|too (good|easy)|"
            r"fell .* (0|zero)|near (0|zero)|shortcut",
            rf"diagonal|itself|mask|positive|negative|self|{PAIRS}",
        ),
        partner="itself",
    ),
    # The teacher learns as well: https://github.com/huangzongmou/yolov8_Distillation/issues/16
    UNDERSTUDY.plant(
        "understudy teaches the teacher",
        named(
            SILENT,
            rf"{STUCK}|{GAP}|{COLLAPSE}|teacher|frozen|chang|moves|drift|constant|trivial",
            r"teacher|no_grad|detach|freez|requires_grad|optimizer",
        ),
        stepped="both",
    ),
    # Several labels and a softmax: https://discuss.pytorch.org/t/using-bcewithlogisloss-for-multi-label-classification/67011
    FOGHORNS.plant(
        "foghorns one horn of all",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|softmax|multi.?label|exclusive|several|entropy|floor",
            rf"softmax|sigmoid|BCE|binary|multi.?label|loss|{PAIRS}",
        ),
        choice="one",
    ),
    # A column and a row make a square: https://github.com/higgsfield-ai/higgsfield/issues/24
    KIOSK.plant(
        "kiosk moves weighed by all advantages",
        named(
            WORSE,
            rf"{STUCK}|{COLLAPSE}|broadcast|shape|pairs?\b|mean|reward|return|value|advantage",
            r"broadcast|shape|squeeze|dimension|unsqueeze|column|value|pair",
        ),
        advantages="of all games",
    ),
    # The sign of the entropy: https://github.com/MrSyee/pg-is-all-you-need/issues/37
    KIOSK.plant(
        "kiosk entropy punished",
        named(
            BACKWARD,
            rf"{STUCK}|{COLLAPSE}|entropy|sign|explor|reward|return|{LOUD}",
            r"entropy|sign|explor|weight|positive|negative",
        ),
        entropy=-0.5,
    ),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)
