"""What a splat format loses, for the terminal and for JSON."""

from typing import Any

from rich.console import Console
from rich.table import Table

from fieldwatch.recon.data.gaussians import WrittenGaussians


def about_written(written: WrittenGaussians) -> dict[str, Any]:
    """Return losses by quantity, and notes."""
    losses = {loss.quantity: {"unit": loss.unit, "worst": loss.worst, "mean": loss.mean} for loss in written.losses}
    return {"losses": losses, "notes": list(written.notes)}


def print_losses(console: Console, written: WrittenGaussians) -> None:
    """Print which values the file stores less exactly than the Gaussians, if any."""
    if any(loss.worst for loss in written.losses):
        table = Table()
        table.add_column("loss of")
        table.add_column("worst", justify="right")
        table.add_column("mean", justify="right")
        table.add_column("unit")
        for loss in written.losses:
            table.add_row(loss.quantity, f"{loss.worst:.2g}", f"{loss.mean:.2g}", loss.unit)
        console.print(table)
    for note in written.notes:
        console.print(f"note: {note}", soft_wrap=True, highlight=False)
