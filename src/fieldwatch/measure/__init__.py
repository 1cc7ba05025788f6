"""Measure loss terms, gradients, parameters, memory and time of a live model without synchronizing the device."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.measure.allocator import AllocatorCounters, PeakMeter
    from fieldwatch.measure.attribution import attribute_terms, term_gradients
    from fieldwatch.measure.capacity import process_capacity
    from fieldwatch.measure.census import Census, SavedTensors, take_census
    from fieldwatch.measure.clock import Clock, Listeners, Span, SpanLabels, SpanListener
    from fieldwatch.measure.detail_schedule import DetailSchedule
    from fieldwatch.measure.fragmentation import Fragmentation, fragmentation_of
    from fieldwatch.measure.gradients import GradientNorms, gradient_norms, gradient_statistics
    from fieldwatch.measure.norms import norm
    from fieldwatch.measure.out_of_memory import (
        FailedAllocation,
        OutOfMemoryNotifier,
        OutOfMemorySubscription,
        on_out_of_memory,
    )
    from fieldwatch.measure.parameter_groups import Owner, ParameterGroups
    from fieldwatch.measure.parameters import UpdateSizes, parameter_statistics
    from fieldwatch.measure.peaks import Peaks
    from fieldwatch.measure.ring import DeviceRing, Heading
    from fieldwatch.measure.snapshots import AllocatorHistory
    from fieldwatch.measure.step_recorder import StepRecorder
    from fieldwatch.measure.terms import Phase, Term, Terms, WeightChange, Window, changed_weights, listening_to_totals

__all__ = [
    "AllocatorCounters",
    "AllocatorHistory",
    "Census",
    "Clock",
    "DetailSchedule",
    "DeviceRing",
    "FailedAllocation",
    "Fragmentation",
    "GradientNorms",
    "Heading",
    "Listeners",
    "OutOfMemoryNotifier",
    "OutOfMemorySubscription",
    "Owner",
    "ParameterGroups",
    "PeakMeter",
    "Peaks",
    "Phase",
    "SavedTensors",
    "Span",
    "SpanLabels",
    "SpanListener",
    "StepRecorder",
    "Term",
    "Terms",
    "UpdateSizes",
    "WeightChange",
    "Window",
    "attribute_terms",
    "changed_weights",
    "fragmentation_of",
    "gradient_norms",
    "gradient_statistics",
    "listening_to_totals",
    "norm",
    "on_out_of_memory",
    "parameter_statistics",
    "process_capacity",
    "take_census",
    "term_gradients",
]

__getattr__, __dir__ = lazy_names(__name__)
