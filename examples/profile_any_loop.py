"""Where the bytes of your own loop are: no run, no other change; a list that grows is named with its owner."""

import sys
from pathlib import Path

import torch
from torch import nn

from fieldwatch import Profile, profile_tensors


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters())
    images, renders = torch.randn(4096, 64), []
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/profile_any_loop")

    data = {"images": images, "renders": renders}
    with profile_tensors(folder, model=model, optimizers=[optimizer], data=data, profile=Profile(interval=10)) as loop:
        for iteration in range(200):
            with loop.step(iteration):
                optimizer.zero_grad()
                with loop.span("render"):
                    render = model(images)
                loss = (render - 1).square().mean()
                loss.backward()
                optimizer.step()
                renders.append(render.detach())  # kept for a picture that is never made: this is the leak

    (log,) = (folder / "profiles").glob("*.log")
    kept = sum(render.nbytes for render in renders)
    print(f"renders hold {kept / 2**20:.2f} MiB after 200 iterations")
    print(f"fieldwatch memory {folder}   # or the log by itself: {log.name}")


if __name__ == "__main__":
    main()
