"""A bare PyTorch loop. The other files of this folder are the same loop, adopted by one library each."""

import torch
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

    for epoch in range(EPOCHS):
        for inputs, targets in loader:
            prediction = model(inputs)
            fit = (prediction - targets).square().mean()
            bounds = (prediction - prediction.clamp(0, 1)).abs().mean()
            loss = fit + 0.1 * bounds

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1} loss {loss.item():.9f}")


if __name__ == "__main__":
    main()
