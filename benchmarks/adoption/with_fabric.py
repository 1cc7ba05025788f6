"""The loop of bare.py with Lightning Fabric, as its guides to conversion, logging and checkpoints say.

Resumes at an epoch. The order of the batches is not part of the checkpoint, so the final weights differ.
"""

from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10
CHECKPOINT = Path("runs/adoption_fabric/last.ckpt")


def main() -> None:
    """Train."""
    fabric = Fabric(loggers=TensorBoardLogger("runs/adoption_fabric"))
    fabric.launch()
    torch.manual_seed(0)
    points = torch.rand(1024, 2)
    values = points.prod(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(points, values), batch_size=64, shuffle=True)

    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    state = {"model": model, "optimizer": optimizer, "epoch": 0, "step": 0}
    if CHECKPOINT.exists():
        fabric.load(CHECKPOINT, state)
    for epoch in range(state["epoch"], EPOCHS):
        for inputs, targets in loader:
            prediction = model(inputs)
            fit = (prediction - targets).square().mean()
            bounds = (prediction - prediction.clamp(0, 1)).abs().mean()
            loss = fit + 0.1 * bounds

            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            fabric.log_dict({"loss": loss, "fit": fit, "bounds": bounds}, step=state["step"])
            state["step"] += 1
        print(f"epoch {epoch + 1} loss {loss.item():.9f}")
        state["epoch"] = epoch + 1
        fabric.save(CHECKPOINT, state)


if __name__ == "__main__":
    main()
