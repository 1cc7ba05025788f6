"""Kinds of faults, and the words that a reader would accept for a fact, as sets d to f use them."""

from verdict_runs.cases import Fault
from verdict_runs.scripts import Fix, Named

WORSE = "wrong targets or inputs"
SAMPLE = "one sample is wrong"
RATES = "rate or schedule"
TERMS = "weights of the terms"
SILENT = "parts that do not learn"
MISMATCH = "training and evaluation differ"
NUMBERS = "numbers of the machine"
RESUME = "continued wrongly"
SEEN = "training sees the answer"
BACKWARD = "wrong sign or order"
# Of the pipelines.
ALL = "all photos, maps or frames"
SETTINGS = "settings of a pipeline"

# The words for a symptom are in all causes of their kind.
STUCK = (
    r"chance|constant|trivial|mean of the (targets|data)|learned ?nothing|no better than|worse than|stuck|plateau|"
    r"not (fall|fallen|learn|improv|decreas)|no ?progress|baseline|uninformative|does not depend"
)
GAP = (
    r"\bgap\b|overfit|over-fit|memori[sz]|held.?out|validation|generali[sz]|evaluation|train(ing)? and (test|eval|val)"
)
RATE = r"learning.?rate|\blr\b|\brates?\b|step size"
SCHEDULE = rf"{RATE}|schedul|warm.?up|decay"
SMALL = rf"{SCHEDULE}|updates? (is|are|ratio)|tiny|too (small|low|slow)|unchanged|hardly (move|change)|barely"
BLOWN = r"diverg|explod|overflow|not finite|non.?finite|\bNaN\b|\bInf\b|blow|unbounded|grow|jump|spike"
LOUD = r"dominat|share of the|outweigh|imbalance|conflict|weight"
DEAD = (
    r"no gradient|without (a )?gradient|zero gradient|gradients? (is|are|of) (exactly )?(0|zero)|dead|saturat|vanish|"
    r"never (receive|change)|unchanged|detach|frozen"
)
HELD = r"optimizer|not (held|updated|stepped|trained)|unchanged|never (changes|updated)"
PAIRS = r"target|label|truth|annotation|pair|align|shuffl|order|data|mapping"
INPUTS = rf"{PAIRS}|input|feature|preprocess|transform|normali[sz]|scal|augment"
COLLAPSE = r"collaps|diversity|spread|modes?\b|degenerat|entropy|determinis"


def named(kind: str, cause: str, *fixes: str, names: tuple[str, ...] = ()) -> Named:
    """Return a fault that any of some fixes mends by leaving it out."""
    return Named(kind=kind, cause=cause, fixes=tuple(Fix(words=words) for words in fixes), names=names)


def fault(kind: str, cause: str, remedy: str) -> Fault:
    """Return a fault of a pipeline, of which the words for a poor result count as well."""
    return Fault(kind=kind, cause=rf"{cause}|mean colou?r|random|{GAP}|{STUCK}", remedy=remedy)
