"""The faults that both halves plant, and the facts by which a verdict is recognized.

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

FAULTS: dict[str, Fault] = {
    # Worse than doing nothing
    "targets shuffled": Fault(kind=WORSE, cause=UNINFORMED, remedy=r"target|label|pair|order of|shuffl"),
    "wrong axes": Fault(
        kind=WORSE, cause=r"axes|axis|facing|outward|mirror|upside|\bsigns?\b", remedy=r"--axes|--normals"
    ),
    "focal length": Fault(kind=WORSE, cause=r"focal|intrinsic|reproject|lens", remedy=r"focal|intrinsic|camera|COLMAP"),
    "poses shuffled": Fault(kind=WORSE, cause=r"pose|reproject|camera", remedy=r"pose|camera|COLMAP|image name"),
    # One sample is wrong all the time
    "wrong sample": Fault(
        kind=SAMPLE,
        cause=r"sample|view|photo|frame|camera|mask",
        remedy=r"sample|view|photo|frame|pose|mask|exclude|label",
    ),
    # Absurd settings
    "rate too high": Fault(kind=ABSURD, cause=rf"{RATE}|UpdateRatio|update ratio", remedy=RATE),
    "rate too low": Fault(kind=ABSURD, cause=rf"{RATE}|UpdateRatio|update ratio|Unchanged", remedy=RATE),
    "regularizer too strong": Fault(
        kind=ABSURD, cause=r"TermDominates|dominat|share of the (total|loss|gradient)", remedy=r"weight"
    ),
    "detached term": Fault(
        kind=ABSURD,
        cause=r"detach|no gradient|without (a )?gradient|constant",
        remedy=r"detach|no_grad|item\(\)|gradient",
    ),
    "resets too often": Fault(kind=ABSURD, cause=r"reset", remedy=r"--reset-every"),
    "prunes too much": Fault(kind=ABSURD, cause=r"prun|opacit|Population", remedy=r"--least-opacity|--prune-below"),
    # Learns nothing
    "same batch": Fault(
        kind=NOTHING,
        cause=r"same (batch|sample|view|frame)|repeat|never (drawn|seen|visited)|distinct",
        remedy=r"batch|shuffl|sampler|loader|order|index",
    ),
    "chance level": Fault(
        kind=NOTHING,
        cause=rf"{UNINFORMED}|saturat|vanish",
        remedy=r"loss|logit|softmax|input|learning rate|target|label",
    ),
    "input not used": Fault(
        kind=NOTHING,
        cause=rf"{UNINFORMED}|input|DeadGroup|no gradient",
        remedy=r"input|encoding|feature|detach|saturat",
    ),
    # Something else moves the training
    "eval mode left on": Fault(
        kind=MOVED,
        cause=r"eval(uation)? mode|train(ing)? mode|\.training|dropout|batch ?norm",
        remedy=r"\.train\(\)|run\.evaluation",
    ),
    "random numbers consumed": Fault(
        kind=MOVED, cause=r"random|generator|seed", remedy=r"run\.evaluation|preserve_random_state|generator"
    ),
    "layer replaced": Fault(kind=MOVED, cause=r"optimizer|not (held|updated|stepped)|Unchanged", remedy=r"optimizer"),
    "parameter missed": Fault(kind=MOVED, cause=r"optimizer|not (held|updated|stepped)|Unchanged", remedy=r"optimizer"),
    "gradients never zeroed": Fault(
        kind=MOVED, cause=r"accumulat|zero_grad|never (zeroed|cleared)|not cleared", remedy=r"zero_grad|step\.backward"
    ),
    "frozen by accident": Fault(
        kind=MOVED,
        cause=r"requires_grad|frozen|DeadGroup|no (longer )?gradient|Unchanged",
        remedy=r"requires_grad|detach|no_grad|contributes|optimizer",
    ),
    "dropout in evaluation": Fault(kind=MOVED, cause=r"train(ing)? mode|eval mode|dropout", remedy=r"\.eval\(\)"),
    # Half precision
    "no loss scaling": Fault(
        kind=PRECISION,
        cause=r"float16|half|underflow|GradientVanishing|vanish",
        remedy=r"scale|GradScaler|bfloat16|float16|underflow",
    ),
    "half weights": Fault(
        kind=PRECISION,
        cause=r"float16|bfloat16|half|rounding|Unchanged|NonFinite|underflow",
        remedy=r"float32|precision|float16|half|autocast|bfloat16|overflow",
    ),
    # NaN and Inf
    "not finite": Fault(
        kind=NOT_FINITE,
        cause=r"NonFinite|not finite|\bNaN\b|\bInf\b",
        remedy=r"log|division|square root|clamp|data|sample",
    ),
    # Gradients
    "gradients explode": Fault(kind=GRADIENTS, cause=r"explod|GradientExploding|NonFinite|overflow", remedy=r"clip"),
    "gradients vanish": Fault(
        kind=GRADIENTS, cause=r"vanish|saturat", remedy=r"activation|saturat|init|normaliz|residual"
    ),
    "overfits": Fault(
        kind=OVERFIT,
        cause=r"overfit|overtrain|held.?out|validation|gap",
        remedy=r"regulari|smaller|more (data|views|samples)|dropout|stop|best",
    ),
    "memory leak": Fault(kind=LEAK, cause=r"Memory(Leak|Growing)|memory", remedy=r"item\(\)|detach"),
    "dead units": Fault(
        kind=DEAD,
        cause=r"dead|DeadGroup|inactive|no gradient|zero gradient|vanish",
        remedy=r"activation|saturat|init|bias|learning rate|ReLU",
    ),
    "mode collapse": Fault(
        kind=MODES,
        cause=r"collapse|diversity|spread|modes|cover|discriminator|critic",
        remedy=r"discriminator|critic|noise|diversity|learning rate|latent",
    ),
    "diverges late": Fault(kind=LATE, cause=rf"{RATE}|diverg|LossJump|explod|jump", remedy=RATE),
    "rate jumps": Fault(kind=JUMP, cause=RATE, remedy=rf"{RATE}|schedule"),
    "fresh optimizer": Fault(kind=FRESH, cause=r"optimizer|moment|NotKept", remedy=r"run\.track|optimizer"),
}
