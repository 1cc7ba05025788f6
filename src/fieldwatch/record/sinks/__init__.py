"""Sinks: destinations that display a run's rows. They are exports; the journal is the authoritative record."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.record.sinks.capabilities import (
        BatchSink,
        Closable,
        ConfigSink,
        Deferrable,
        EventSink,
        Flushable,
        HistogramSink,
        ImageSink,
        LayoutSink,
        Rewindable,
        TextSink,
        VerdictSink,
    )
    from fieldwatch.record.sinks.console import Console
    from fieldwatch.record.sinks.csv import Csv
    from fieldwatch.record.sinks.extras import MissingExtra
    from fieldwatch.record.sinks.histogram_reader import StoredHistogram, stored_histograms
    from fieldwatch.record.sinks.log import Log
    from fieldwatch.record.sinks.mlflow import MLflow
    from fieldwatch.record.sinks.tensorboard import TensorBoard
    from fieldwatch.record.sinks.trackio import Trackio
    from fieldwatch.record.sinks.verdict import verdict_facts
    from fieldwatch.record.sinks.wandb import Wandb

__all__ = [
    "BatchSink",
    "Closable",
    "ConfigSink",
    "Console",
    "Csv",
    "Deferrable",
    "EventSink",
    "Flushable",
    "HistogramSink",
    "ImageSink",
    "LayoutSink",
    "Log",
    "MLflow",
    "MissingExtra",
    "Rewindable",
    "StoredHistogram",
    "TensorBoard",
    "TextSink",
    "Trackio",
    "VerdictSink",
    "Wandb",
    "stored_histograms",
    "verdict_facts",
]

__getattr__, __dir__ = lazy_names(__name__)
