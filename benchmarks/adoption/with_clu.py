"""The loop of bare.py with CLU (Common Loop Utils), as its docstrings say: the writer for PyTorch, and progress.

It has no checkpoints and does not resume: `clu.checkpoint` stores Flax data classes and TensorFlow state, but no torch
modules or optimizers. `clu.metric_writers` always imports TensorFlow and JAX.
"""

import torch
from clu import periodic_actions
from clu.metric_writers.torch_tensorboard_writer import TorchTensorboardWriter
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    points = torch.rand(1024, 2)
    values = points.prod(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(points, values), batch_size=64, shuffle=True)

    writer = TorchTensorboardWriter("runs/adoption_clu")
    report_progress = periodic_actions.ReportProgress(num_train_steps=EPOCHS * len(loader), writer=writer)
    step = 0
    for epoch in range(EPOCHS):
        for inputs, targets in loader:
            prediction = model(inputs)
            fit = (prediction - targets).square().mean()
            bounds = (prediction - prediction.clamp(0, 1)).abs().mean()
            loss = fit + 0.1 * bounds

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            writer.write_scalars(step, {"loss": loss, "fit": fit, "bounds": bounds})
            report_progress(step)
        print(f"epoch {epoch + 1} loss {loss.item():.9f}")
    writer.flush()


if __name__ == "__main__":
    main()
