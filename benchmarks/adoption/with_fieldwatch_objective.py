"""The loop of bare.py with fieldwatch, with the loss as a function of the batch, as in the README.

Resumes like with_fieldwatch.py. A step that runs out of memory is repeated in smaller micro-batches.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import fieldwatch as fw

EPOCHS = 10


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    points = torch.rand(1024, 2)
    values = points.prod(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = fw.ResumableLoader(TensorDataset(points, values), batch_size=64, shuffle=True)

    def objective(batch: tuple[torch.Tensor, torch.Tensor]) -> fw.Terms:
        inputs, targets = batch
        prediction = model(inputs)
        fit = (prediction - targets).square().mean()
        bounds = (prediction - prediction.clamp(0, 1)).abs().mean()
        return fw.Terms(fit=(1.0, fit), bounds=(0.1, bounds))

    with fw.Run("runs/adoption") as run:
        run.track(model=model, optimizer=optimizer, loader=loader)
        run.resume()
        for step, (inputs, targets) in zip(run.steps(EPOCHS * len(loader)), run.batches(loader)):
            terms = step.backward(objective, (inputs, targets))
            step.update(optimizer)
            if step.every(len(loader)):
                print(f"epoch {loader.epoch} loss {terms.total.item():.9f}")


if __name__ == "__main__":
    main()
