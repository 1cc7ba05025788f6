"""What a live model shows: loss terms, gradients, parameters, time; recorded without a host read."""

from fieldwatch.measure.attribution import attribute_terms
from fieldwatch.measure.clock import Clock
from fieldwatch.measure.gradients import MAX_TAG, TOTAL_TAG, GradientNorms, gradient_norms, largest_gradient
from fieldwatch.measure.parameters import UpdateSizes, parameter_statistics
from fieldwatch.measure.recorder import Recorder
from fieldwatch.measure.ring import Heading, Ring, RingTransfer
from fieldwatch.measure.terms import Phase, Term, Terms, Window
from fieldwatch.measure.watched import Owner, Watched

__all__ = [
    "MAX_TAG",
    "TOTAL_TAG",
    "Clock",
    "GradientNorms",
    "Heading",
    "Owner",
    "Phase",
    "Recorder",
    "Ring",
    "RingTransfer",
    "Term",
    "Terms",
    "UpdateSizes",
    "Watched",
    "Window",
    "attribute_terms",
    "gradient_norms",
    "largest_gradient",
    "parameter_statistics",
]
