"""A run: somebody's own training loop, recorded, guarded, saved and resumed."""

from fieldwatch.run.run import Interrupted, Run
from fieldwatch.run.step import Step

__all__ = ["Interrupted", "Run", "Step"]
