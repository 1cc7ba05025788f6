"""Profile the tensor memory of any loop, without a `Run`; the profile names the list that grows."""

import sys
from pathlib import Path

import torch
from torch import nn

from fieldwatch import Profile, profile_tensors


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.randn(4096, 64)
    renders = []
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
                renders.append(render.detach())  # the leak: nothing ever uses or frees these renders

    (log,) = (folder / "profiles").glob("*.log")
    kept = sum(render.nbytes for render in renders)
    print(f"renders hold {kept / 2**20:.2f} MiB after 200 iterations")
    print(f"fieldwatch memory {folder}   # or only the log: {log.name}")


if __name__ == "__main__":
    main()
