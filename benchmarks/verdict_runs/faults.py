"""The faults that sets a and b plant, and the facts by which a verdict is recognized.

A finding names the cause if its rule, subject or message matches ``cause`` and holds the names of the plant (the wrong
sample, for example). Its remedy is right if it matches ``remedy``. The expressions ask for facts, never for sentences.
"""

from .cases import Fault

WORSE = "worse than doing nothing"
SAMPLE = "one sample is wrong"
ABSURD = "absurd setting"
NOTHING = "learns nothing"
MOVED = "something else moves the training"
PRECISION = "half precision"
NOT_FINITE = "NaN and Inf"
GRADIENTS = "gradients explode or vanish"
OVERFIT = "overfitting"
LEAK = "memory leak"
DEAD = "dead units"
MODES = "mode collapse"
LATE = "diverges late"
JUMP = "rate jumps"
FRESH = "fresh optimizer"

RATE = r"learning.?rate|LearningRate|\blr\b|--lr"
UNINFORMED = (
    r"chance|uniform|constant predict|mean of the targets|mean target|predicting the mean|trivial|baseline of|"
    r"no better than|worse than|learned ?nothing|LearnedNothing|NotDecreasing|random normals|mean colou?r|held.?out"
)

BY_KIND: dict[str, dict[str, tuple[str, str]]] = {
    WORSE: {
        "targets shuffled": (UNINFORMED, r"target|label|pair|order of|shuffl"),
        "wrong axes": (r"axes|axis|facing|outward|mirror|upside|\bsigns?\b", r"--axes|--normals"),
        "photos turned": (r"turned|mirrored|upside", r"turn|EXIF|COLMAP"),
        "photos magnified": (r"magnified|zoom", r"focal|COLMAP"),
        "slopes too flat": (r"contradict|slope", r"slope"),
        "focal length": (r"focal|intrinsic|reproject|lens", r"focal|intrinsic|camera|COLMAP"),
        "poses shuffled": (r"pose|reproject|camera", r"pose|camera|COLMAP|image name"),
    },
    SAMPLE: {
        "wrong sample": (r"sample|view|photo|frame|camera|mask", r"sample|view|photo|frame|pose|mask|exclude|label"),
    },
    ABSURD: {
        "rate too high": (rf"{RATE}|UpdateRatio|update ratio", RATE),
        "rate too low": (rf"{RATE}|UpdateRatio|update ratio|Unchanged", RATE),
        "class weights": (r"weigh", r"weights? of the classes|counts"),
        "no logarithm": (r"kl_div|logarithm", r"log_softmax"),
        "regularizer too strong": (r"TermDominates|dominat|share of the (total|loss|gradient)", r"weight"),
        "detached term": (r"detach|no gradient|without (a )?gradient|constant", r"detach|no_grad|item\(\)|gradient"),
        "resets too often": (r"reset", r"--reset-every"),
        "prunes too much": (r"prun|opacit|Population", r"--least-opacity|--prune-below"),
    },
    NOTHING: {
        "same batch": (
            r"same (batch|sample|view|frame)|repeat|never (drawn|seen|visited)|distinct",
            r"batch|shuffl|sampler|loader|order|index",
        ),
        "chance level": (rf"{UNINFORMED}|saturat|vanish", r"loss|logit|softmax|input|learning rate|target|label"),
        "input not used": (rf"{UNINFORMED}|input|DeadGroup|no gradient", r"input|encoding|feature|detach|saturat"),
    },
    MOVED: {
        "eval mode left on": (
            r"eval(uation)? mode|train(ing)? mode|\.training|dropout|batch ?norm",
            r"\.train\(\)|run\.evaluation",
        ),
        "random numbers consumed": (r"random|generator|seed", r"run\.evaluation|preserve_random_state|generator"),
        "layer replaced": (r"optimizer|not (held|updated|stepped)|Unchanged", r"optimizer"),
        "parameter missed": (r"optimizer|not (held|updated|stepped)|Unchanged", r"optimizer"),
        "gradients never zeroed": (
            r"accumulat|zero_grad|never (zeroed|cleared)|not cleared",
            r"zero_grad|step\.backward",
        ),
        "padding": (r"padded|padding", r"padding|pad "),
        "frozen by accident": (
            r"requires_grad|frozen|DeadGroup|no (longer )?gradient|Unchanged",
            r"requires_grad|detach|no_grad|contributes|optimizer",
        ),
        "dropout in evaluation": (r"train(ing)? mode|eval mode|dropout", r"\.eval\(\)"),
    },
    PRECISION: {
        "no loss scaling": (
            r"float16|half|underflow|GradientVanishing|vanish",
            r"scale|GradScaler|bfloat16|float16|underflow",
        ),
        "half weights": (
            r"float16|bfloat16|half|rounding|Unchanged|NonFinite|underflow",
            r"float32|precision|float16|half|autocast|bfloat16|overflow",
        ),
    },
    NOT_FINITE: {
        "not finite": (r"NonFinite|not finite|\bNaN\b|\bInf\b", r"log|division|square root|clamp|data|sample"),
    },
    GRADIENTS: {
        "gradients explode": (r"explod|GradientExploding|NonFinite|overflow", r"clip"),
        "gradients vanish": (r"vanish|saturat", r"activation|saturat|init|normaliz|residual"),
    },
    OVERFIT: {
        "overfits": (
            r"overfit|overtrain|held.?out|validation|gap",
            r"regulari|smaller|more (data|views|samples)|dropout|stop|best",
        ),
    },
    LEAK: {
        "memory leak": (r"Memory(Leak|Growing)|memory", r"item\(\)|detach"),
    },
    DEAD: {
        "dead units": (
            r"dead|DeadGroup|inactive|no gradient|zero gradient|vanish",
            r"activation|saturat|init|bias|learning rate|ReLU",
        ),
    },
    MODES: {
        "mode collapse": (
            r"collapse|diversity|spread|modes|cover|discriminator|critic",
            r"discriminator|critic|noise|diversity|learning rate|latent",
        ),
    },
    LATE: {
        "diverges late": (rf"{RATE}|diverg|LossJump|explod|jump", RATE),
    },
    JUMP: {
        "rate jumps": (RATE, rf"{RATE}|schedule"),
    },
    FRESH: {
        "fresh optimizer": (r"optimizer|moment|NotKept", r"run\.track|optimizer"),
    },
}
"""Causes and remedies of the faults, by kind and name."""

FAULTS: dict[str, Fault] = {
    name: Fault(kind=kind, cause=cause, remedy=remedy)
    for kind, faults in BY_KIND.items()
    for name, (cause, remedy) in faults.items()
}
"""The faults by name."""
