"""Plants of set k, each beside the address of a report of the same mistake."""

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
    SMALL,
    STUCK,
    TERMS,
    WORSE,
    named,
)
from verdict_runs.scripts import Fix, Named, Script

from . import deciding, making, pictures, sequences, tables
from .pipelines import PIPELINES

SHAPE = "wrong loss or architecture"
PROCESS = "memory, data and time"

VINEYARD = Script(program=tables.vineyard, good=0.88)
CLINIC = Script(program=tables.clinic, good=0.72)
COUNTED = Script(program=tables.clinic, good=-0.09, settings={"figure": "honesty"})
DAIRY = Script(program=tables.dairy, good=0.82)
GAPS = Script(program=tables.dairy, good=0.82, settings={"unmeasured": 0.1})
KEPT = Script(program=tables.dairy, good=-20.0, settings={"figure": "memory"})
HIVES = Script(program=tables.hives, good=0.65)
GAUGES = Script(program=tables.gauges, good=-1.0)
POLLEN = Script(program=pictures.pollen, good=0.75)
HONESTY = Script(program=pictures.pollen, good=-0.1, settings={"figure": "honesty", "norms": True})
QUARRY = Script(program=pictures.quarry, good=0.8)
CRANES = Script(program=pictures.cranes, good=0.9)
HERBARIUM = Script(program=pictures.herbarium, good=0.8)
TUNED = Script(program=pictures.herbarium, good=0.75, settings={"held": "nothing", "lr": 1e-3})
LOOM = Script(program=sequences.loom, good=0.7)
CHANTS = Script(program=sequences.chants, good=0.7)
LETTERS = Script(program=sequences.letters, good=0.9)
AQUIFER = Script(program=sequences.aquifer, good=-0.18)
WHISTLES = Script(program=sequences.whistles, good=0.9)
COMETS = Script(program=making.comets, good=-0.45)
FEATHERS = Script(program=making.feathers, good=-0.06)
RELIEF = Script(program=making.relief, good=15.0)
LICHEN = Script(program=making.lichen, good=18.0)
STAMPS = Script(program=making.stamps, good=0.75)
COMMUTERS = Script(program=deciding.commuters, good=0.8)
ELEVATOR = Script(program=deciding.elevator, good=0.9)
LOBBY = Script(program=deciding.elevator, good=0.9, settings={"rare": True, "total": 600})
HARVESTER = Script(program=deciding.harvester, good=0.85)
SCRIBE = Script(program=deciding.scribe, good=0.8)
GLACIER = Script(program=deciding.glacier, good=0.66)

LOOPS: tuple[Plant, ...] = (
    # Rows.
    # A row and a column make a table: https://github.com/deepset-ai/FARM/issues/229
    VINEYARD.plant(
        "vineyard prices in a row",
        named(
            SHAPE,
            rf"{STUCK}|broadcast|shape|size|\[\d+, ?1\]|column|dimension",
            rf"shape|broadcast|squeeze|view|dimension|unsqueeze|\[:, None\]|{PAIRS}",
        ),
        price="row",
    ),
    # What was measured as it was: https://github.com/ageron/handson-ml3/pull/20
    VINEYARD.plant(
        "vineyard numbers as measured",
        named(
            WORSE,
            rf"{STUCK}|{BLOWN}|scal|range|magnitude|standardi[sz]|normali[sz]|input|feature|unit",
            r"standardi[sz]|normali[sz]|scal|input|feature",
        ),
        scaled="as measured",
    ),
    # No answer below zero: https://github.com/ProteomicsML/ProteomicsML/pull/203
    VINEYARD.plant(
        "vineyard a ReLU at the end",
        named(
            SHAPE,
            rf"{STUCK}|{DEAD}|ReLU|negative|below (0|zero)|clamp|range|activation|output|last layer",
            r"ReLU|activation|last layer|output|negative|range",
        ),
        ending="relu",
    ),
    # All weights the same: https://github.com/wagonhelm/NaNmnist/issues/2
    VINEYARD.plant(
        "vineyard weights all equal",
        named(
            SILENT,
            rf"{STUCK}|{COLLAPSE}|equal|identical|same (value|weight|output|unit)|symmetr|initiali[sz]|rank|constant",
            r"initiali[sz]|random|symmetr|reset_parameters|weights",
        ),
        start="equal",
    ),
    # Rows are dropped on one side: https://github.com/ContinuumIO/elm/pull/170
    CLINIC.plant(
        "clinic rows dropped on one side",
        named(WORSE, rf"{STUCK}|{GAP}|{PAIRS}", rf"{PAIRS}|row|drop|index"),
        dropped="from the findings",
    ),
    # Doubled before the split: https://github.com/georgymh/ml-fraud-detection/issues/1
    COUNTED.plant(
        "clinic the ill doubled before the split",
        named(
            SEEN,
            rf"same (data|sample|row)|seen|training (data|set|rows)|leak|overlap|identical|duplicat|split|{GAP}",
            rf"split|held.?out|validation|separate|overlap|leak|duplicat|oversampl|{INPUTS}",
        ),
        doubled="before the split",
    ),
    # A target in large units: https://github.com/yuanwei1989/landmark-detection/issues/2
    DAIRY.plant(
        "dairy milk in kg",
        named(
            TERMS,
            rf"{LOUD}|{STUCK}|scale|magnitude|large|unit|term|{BLOWN}",
            r"scal|normali[sz]|standardi[sz]|weight|unit|target|term",
        ),
        unit="kg",
    ),
    # What nobody measured: https://github.com/chemprop/chemprop/pull/1303
    GAPS.plant(
        "dairy milk that nobody measured",
        named(
            NUMBERS,
            r"\bNaN\b|not finite|non.?finite|missing|refused|diverg",
            r"\bNaN\b|missing|mask|isnan|isfinite|nan_to_num|target|label|data|impute",
        ),
        skipped=False,
    ),
    # Losses with their graphs: https://github.com/rballester/tntorch/pull/19
    KEPT.plant(
        "dairy losses kept with their graphs",
        named(PROCESS, r"memory|leak|grow|graph", r"detach|item\(\)|no_grad|graph|float\("),
        checked="with graphs",
    ),
    # Parts in a plain dict: https://github.com/pytorch/pytorch/issues/10817
    HIVES.plant(
        "hives networks in a plain dict",
        named(
            SILENT,
            rf"{DEAD}|{HELD}|{STUCK}|dict|regist|not (a part|tracked)|parameters",
            r"ModuleDict|ModuleList|regist|dict|optimizer|parameters|add_module",
        ),
        plain=True,
    ),
    # Gradients that nobody cleared: https://github.com/IBM/aihwkit/issues/446
    HIVES.plant(
        "hives gradients of all steps",
        named(BACKWARD, rf"zero_grad|clear|accumul|left|stale|{BLOWN}", r"zero_grad|clear|set_to_none"),
        cleared=False,
    ),
    # Tensors from lists: https://github.com/pytorch/pytorch/issues/57467
    GAUGES.plant(
        "gauges packed number by number",
        named(
            PROCESS,
            r"slow|wait|batch|load|input|data|time|collat|starv|bottleneck",
            r"collat|worker|loader|prefetch|stack|numpy|cache|batch|data",
        ),
        packed="array by array",
    ),
    # Pictures.
    # The numbers of bytes for pictures of 0 to 1: https://github.com/timesler/facenet-pytorch/issues/89
    POLLEN.plant(
        "pollen scaled as bytes",
        named(
            WORSE,
            rf"{STUCK}|constant|range|spread|scal|normali[sz]|standardi[sz]|input|varia",
            rf"normali[sz]|scal|mean|std|range|{INPUTS}",
        ),
        scaled="as bytes",
    ),
    # Chances for logits: https://github.com/bowang-lab/Transformer-GCN-QA/pull/32
    POLLEN.plant(
        "pollen softmax before the loss",
        named(
            SHAPE,
            rf"{STUCK}|softmax|probabilit|chances|logits|sum to (1|one)|twice",
            r"softmax|logits|cross_entropy|CrossEntropy|probabilit",
        ),
        loss="of chances",
    ),
    # Chances for logarithms of chances: https://github.com/AnubhavGupta3377/Text-Classification-Models-Pytorch/issues/9
    POLLEN.plant(
        "pollen no logarithm",
        named(
            SHAPE,
            rf"{STUCK}|softmax|probabilit|logarithm|\blog\b|negative|below (0|zero)|nll",
            r"log_softmax|LogSoftmax|logarithm|cross_entropy|CrossEntropy|logits|\blog\b",
        ),
        loss="negative chance",
    ),
    # The rate of another optimizer: https://github.com/OpenNMT/OpenNMT-py/issues/805
    POLLEN.plant(
        "pollen Adam with the rate of SGD",
        Named(
            kind=RATES,
            cause=rf"{RATE}|{BLOWN}|{STUCK}|{DEAD}|updates? (is|are|ratio)|large",
            fixes=(Fix(words=RATE, rate="lr"),),
        ),
        lr=0.1,
    ),
    # ... and the other way around (there, too, another optimizer helped): https://github.com/emalgorithm/structured-neural-summarization-replication/issues/3
    POLLEN.plant(
        "pollen SGD with the rate of Adam",
        Named(
            kind=RATES,
            cause=rf"{SMALL}|{STUCK}|momentum",
            fixes=(Fix(words=RATE, rate="lr"), Fix(words=r"momentum|adam|optimizer")),
        ),
        optimizer="sgd",
        lr=1e-3,
    ),
    # Norms of the batch in an evaluation: https://github.com/ashafahi/free_adv_train/issues/4
    HONESTY.plant(
        "pollen judged in training mode",
        named(
            MISMATCH,
            rf"{GAP}|mode|norm|running|statistic|batch",
            r"eval\(\)|eval mode|evaluation mode|mode|norm",
        ),
        mode="train",
    ),
    # Photos and masks are cropped apart: https://github.com/Project-MONAI/MONAI/issues/1102
    QUARRY.plant(
        "quarry photos and masks cropped apart",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|align|pair|crop|mask|augment|conflict|shift",
            rf"crop|augment|same|align|mask|seed|transform|{PAIRS}",
        ),
        cut="apart",
    ),
    # The background is left out: https://github.com/MIC-DKFZ/nnUNet/issues/1293
    QUARRY.plant(
        "quarry soil left out",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|ignore|class|kind|never|label|background|missing",
            r"ignore_index|ignore|class|label|background",
        ),
        left_out=0,
    ),
    # Rows for columns: https://github.com/Megvii-BaseDetection/YOLOX/issues/201
    CRANES.plant(
        "cranes cells counted by columns",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|row|column|transpos|ax[ie]s|cell|grid|index|match",
            rf"row|column|transpos|ax[ie]s|cell|grid|index|meshgrid|{PAIRS}",
        ),
        cell="column by column",
    ),
    # Weights that are never loaded: https://github.com/torchgeo/torchgeo/issues/4036
    HERBARIUM.plant(
        "herbarium weights under other names",
        named(
            SILENT,
            rf"{STUCK}|{GAP}|{DEAD}|frozen|random|initial|pretrained|load|strict|keys?\b",
            r"strict|load|keys?\b|names?\b|prefix|pretrained|unfreez|checkpoint|state_dict",
        ),
        weights="wrapped",
    ),
    # Everything is frozen: https://github.com/cfzd/Ultra-Fast-Lane-Detection/issues/282
    HERBARIUM.plant(
        "herbarium the head frozen as well",
        named(
            SILENT,
            r"requires_grad|require grad|frozen|freez|no gradient|grad_fn|nothing (is|to) train",
            r"requires_grad|unfreez|freez|head|train",
        ),
        held="everything",
    ),
    # A body that unlearns: https://github.com/facebookresearch/detr/issues/95
    TUNED.plant(
        "herbarium body at a rate from scratch",
        Named(
            kind=RATES,
            cause=rf"{RATE}|{BLOWN}|{GAP}|{STUCK}|updates? (is|are|ratio)|forget|large|change",
            fixes=(Fix(words=RATE, rate="lr"), Fix(words=r"freez|frozen", settings={"held": "body", "lr": 1e-2})),
        ),
        lr=0.1,
    ),
    # Sequences.
    # Threads for patterns: https://github.com/yunjey/pytorch-tutorial/issues/196
    LOOM.plant(
        "loom patterns for threads",
        named(
            SHAPE,
            rf"{STUCK}|{GAP}|batch_first|batch|dimension|axis|transpos|order|mix|sequence|leak|depend",
            r"batch_first|transpos|permut|dimension|axis|layout",
        ),
        layout="thread",
    ),
    # The state after the padding: https://github.com/thtrieu/qclass_dl/issues/1
    LOOM.plant(
        "loom state after the padding",
        named(
            SHAPE,
            rf"{STUCK}|{DEAD}|padd|last|length|zero|constant|vanish",
            r"length|pack|padd|mask|last|index|gather",
        ),
        taken="last place",
    ),
    # A state with its graph: https://github.com/MorvanZhou/PyTorch-Tutorial/issues/57
    CHANTS.plant(
        "chants state with its graph",
        named(
            BACKWARD,
            r"second time|graph|detach|freed|retain|hidden|state",
            r"detach|retain_graph|state|hidden|truncat",
        ),
        carried="with its graph",
    ),
    # Weights that are too large: https://github.com/HuwCampbell/grenade/issues/51
    CHANTS.plant(
        "chants weights of one",
        named(
            SILENT,
            rf"initiali[sz]|saturat|large|spread|{STUCK}|{BLOWN}|{GAP}|std|clip|gradient norm",
            r"initiali[sz]|std|smaller|xavier|kaiming|orthogonal|reset_parameters|weights",
        ),
        spread=1.0,
    ),
    # Answers that are cut off: https://github.com/huggingface/trl/pull/5826
    LETTERS.plant(
        "letters cut before the answer",
        named(
            NUMBERS,
            r"\bNaN\b|not finite|non.?finite|ignore|-100|mask|no (label|target|token)|empty|refused|diverg",
            r"-100|ignore|label|target|mask|truncat|length|cut|longer|data|empty",
        ),
        longest=12,
    ),
    # Windows that overlap: https://github.com/Y-debug-sys/Diffusion-TS/issues/67
    AQUIFER.plant(
        "aquifer windows dealt at random",
        named(
            SEEN,
            rf"overlap|leak|seen|split|same (data|sample|row)|duplicat|near|time|{GAP}",
            rf"split|time|chronolog|overlap|leak|later|held.?out|{INPUTS}",
        ),
        split="at random",
    ),
    # A cycle counted in epochs: https://github.com/A4Bio/PiFold/issues/6
    AQUIFER.plant(
        "aquifer cycle of epochs",
        named(
            PROCESS,
            r"total.?steps|OneCycle|schedul|step \d+ times|number of total|ValueError|raised|died",
            r"total_steps|steps_per_epoch|epochs|schedul|OneCycle|steps",
        ),
        cycle="epochs",
    ),
    # One kind after the other: https://github.com/xuyxu/Deep-Clustering-Network/issues/2
    WHISTLES.plant(
        "whistles folder by folder",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|shuffl|sorted|order|same (class|kind|label)|one class|batch|forget|spike|period",
            r"shuffl|order|sampl|mix|random",
        ),
        order="folder by folder",
    ),
    # A schedule of epochs at each batch: https://github.com/ivadomed/ivadomed/pull/55
    WHISTLES.plant(
        "whistles schedule of epochs at each batch",
        named(RATES, rf"{SMALL}|{STUCK}|StepLR|per (batch|epoch)", rf"{SCHEDULE}|epoch|StepLR|gamma|step_size"),
        stepped="batch",
    ),
    # Making and storing.
    # A critic without a bound: https://github.com/torchgan/torchgan/pull/42
    COMETS.plant(
        "comets critic without a bound",
        named(
            SHAPE,
            rf"{BLOWN}|{COLLAPSE}|{LOUD}|critic|discriminator|lipschitz|clip|penalty|bound|{GAP}",
            r"clip|clamp|penalty|lipschitz|bound|spectral|critic|discriminator|regulari",
        ),
        bound=0.0,
    ),
    # Levels of another scale: https://github.com/jsu27/decomp_diffusion/issues/2
    FEATHERS.plant(
        "feathers levels told as numbers",
        named(
            MISMATCH,
            rf"{GAP}|scal|range|level|time|differ|input|distribution|sampl",
            rf"scal|range|level|timestep|same|time|{INPUTS}",
        ),
        asked="numbers",
    ),
    # A quarter of the grid: https://github.com/ispc-lab/LiDAR4D/pull/2
    RELIEF.plant(
        "relief a quarter of the grid",
        named(
            SILENT,
            rf"{DEAD}|{STUCK}|{GAP}|grid|range|\[-1|unused|never|part of|entries|rows",
            r"grid_sample|grid|range|-1|\[0, ?1\]|coordinat|normali[sz]|scal",
        ),
        low=0.0,
    ),
    # Half of the digits: https://github.com/afiaka87/glide-finetune/issues/5
    LICHEN.plant(
        "lichen weights of sixteen bits",
        Named(
            kind=NUMBERS,
            cause=r"float16|half|16.?bit|precision|overflow|underflow|eps|\bNaN\b|finite|diverg|refused",
            fixes=(
                Fix(words=r"float32|autocast|master|bfloat16|full precision|GradScaler|scaler"),
                Fix(words=r"\beps|epsilon", settings={"least": 1e-4}),
                Fix(words=r"half|float16|precision"),
            ),
        ),
        numbers="float16",
    ),
    # A length of the batch: https://github.com/tensorflow/similarity/issues/237
    STAMPS.plant(
        "stamps one length for the batch",
        named(
            SHAPE,
            rf"{STUCK}|{COLLAPSE}|{SMALL}|normali[sz]|norm\b|length|temperature|scale|uniform|logits",
            r"normali[sz]|norm\b|dim|axis|temperature|scale|length",
        ),
        length="the batch",
    ),
    # Deciding.
    # Tracks for one way: https://github.com/pyg-team/pytorch_geometric/issues/435
    COMMUTERS.plant(
        "commuters tracks one way",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|edge|direct|both|symmetr|revers|neighbou?r",
            rf"edge|direct|both|symmetr|revers|undirected|{INPUTS}",
        ),
        ways="one",
    ),
    # States after the move: https://github.com/Kaixhin/Atari/issues/2
    LOBBY.plant(
        "elevator stored after it moved",
        named(
            WORSE,
            rf"{STUCK}|same|identical|state|next|transition|reward|{COLLAPSE}",
            rf"state|next|before|after|copy|transition|store|buffer|memory|{PAIRS}",
        ),
        stored="after it moved",
    ),
    # A limit of time is no end: https://github.com/openai/baselines/issues/436
    HARVESTER.plant(
        "harvester ends at the limit",
        named(
            BACKWARD,
            rf"{STUCK}|bootstrap|terminal|done|truncat|limit|horizon|value|return|episode",
            r"bootstrap|terminal|done|truncat|limit|horizon|value|discount",
        ),
        at_the_limit="ends",
    ),
    # Writers in another order: https://github.com/neuralmagic/sparseml/pull/1401
    SCRIBE.plant(
        "scribe writers in the order of the alphabet",
        named(
            WORSE,
            rf"conflict|{LOUD}|{STUCK}|{GAP}|teacher|order|mapping|disagree|label|term",
            rf"teacher|order|mapping|class|index|{PAIRS}",
        ),
        names="alphabet",
    ),
    # The same beginning in each job: https://github.com/kyutai-labs/pocket-tts/pull/287
    GLACIER.plant(
        "glacier each job begins anew",
        named(
            RESUME,
            rf"{GAP}|same (batch|sample|data)|repeat|never (seen|drawn)|resum|order|loader|seed|position|kept|track",
            r"loader|order|seed|position|state|track|resum|sampler|ResumableLoader|generator",
        ),
        order="begins anew",
    ),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)

MEANING = frozenset({"commuters tracks one way"})
"""Faults that nobody can tell who does not know what the data mean."""
