"""The loop of bare.py with Hugging Face Accelerate, as its quick tour and its pages on trackers and checkpoints say.

Resumes at an epoch. The random generators are part of the checkpoint, so the final weights are the same.
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10
FOLDER = Path("runs/adoption_accelerate")


def main() -> None:
    """Train."""
    accelerator = Accelerator(log_with="tensorboard", project_dir=FOLDER)
    accelerator.init_trackers("adoption")
    torch.manual_seed(0)
    points = torch.rand(1024, 2)
    values = points.prod(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(points, values), batch_size=64, shuffle=True)

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    finished = len(list(FOLDER.glob("epoch_*")))
    if finished:
        accelerator.load_state(FOLDER / f"epoch_{finished - 1}")
    step = finished * len(loader)
    for epoch in range(finished, EPOCHS):
        for inputs, targets in loader:
            prediction = model(inputs)
            fit = (prediction - targets).square().mean()
            bounds = (prediction - prediction.clamp(0, 1)).abs().mean()
            loss = fit + 0.1 * bounds

            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            accelerator.log({"loss": loss, "fit": fit, "bounds": bounds}, step=step)
            step += 1
        print(f"epoch {epoch + 1} loss {loss.item():.9f}")
        accelerator.save_state(FOLDER / f"epoch_{epoch}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
