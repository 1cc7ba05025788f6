"""A user's training loop: a small network learns an image from its coordinates."""

import torch
from torch import nn

STEPS = 300
SIZE = 32


def picture() -> torch.Tensor:
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    rings = torch.sin(12 * (x.square() + y.square()))
    return torch.stack([rings, x * rings, y.cos()], dim=-1).reshape(-1, 3) / 2 + 0.5


def coordinates() -> torch.Tensor:
    axis = torch.linspace(-1, 1, SIZE)
    points = torch.cartesian_prod(axis, axis)
    waves = torch.cat([points * 2**k * torch.pi for k in range(5)], dim=-1)
    return torch.cat([waves.sin(), waves.cos()], dim=-1)


def main() -> None:
    torch.manual_seed(0)
    inputs = coordinates()
    targets = picture()
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for step in range(STEPS):
        chosen = torch.randint(len(inputs), (256,))
        prediction = model(inputs[chosen])
        color = (prediction - targets[chosen]).square().mean()
        bounds = (prediction - prediction.clamp(0, 1)).abs().mean()
        loss = color + 0.1 * bounds

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {loss.item():.9f}")

    print("weights", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
