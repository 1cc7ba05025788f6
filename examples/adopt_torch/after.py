"""A user's training loop: a small network learns an image from its coordinates."""

import sys

import torch
from torch import nn

from fieldwatch import Run, Terms

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

    with Run(sys.argv[1] if len(sys.argv) > 1 else "runs/adopt_torch") as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(STEPS):
            chosen = torch.randint(len(inputs), (256,))
            prediction = model(inputs[chosen])
            color = (prediction - targets[chosen]).square().mean()
            bounds = (prediction - prediction.clamp(0, 1)).abs().mean()
            terms = Terms(color=(1.0, color), bounds=(0.1, bounds))

            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.every(100):
                print(f"step {step.index + 1} loss {terms.total.item():.9f}")

    print("weights", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
