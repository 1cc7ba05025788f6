"""The training pipelines. They do not import each other; what all of them share of their own history stands here."""

RENAMED_ITEMS = {"parts": "micro_batches", "looks": "evaluation_batches", "neighbours": "neighbors"}
"""Checkpoint items under the names that earlier versions gave them, and their names now: for `Run.resume`."""
