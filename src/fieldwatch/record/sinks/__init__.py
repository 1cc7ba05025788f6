"""Sinks: where a run's rows are shown. None of them is the store; the journal is."""

from fieldwatch.record.sinks.capabilities import (
    Closable,
    Flushable,
    Patient,
    Rewindable,
    ShowsConfig,
    ShowsHistograms,
    ShowsImages,
    ShowsLayout,
    ShowsText,
    TakesEvents,
)
from fieldwatch.record.sinks.console import Console
from fieldwatch.record.sinks.csv import Csv
from fieldwatch.record.sinks.extras import MissingExtra
from fieldwatch.record.sinks.log import Log
from fieldwatch.record.sinks.mlflow import MLflow
from fieldwatch.record.sinks.tensorboard import TensorBoard
from fieldwatch.record.sinks.wandb import Wandb

__all__ = [
    "Closable",
    "Console",
    "Csv",
    "Flushable",
    "Log",
    "MLflow",
    "MissingExtra",
    "Patient",
    "Rewindable",
    "ShowsConfig",
    "ShowsHistograms",
    "ShowsImages",
    "ShowsLayout",
    "ShowsText",
    "TakesEvents",
    "TensorBoard",
    "Wandb",
]
