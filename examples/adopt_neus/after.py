"""A training loop like that of NeuS: a signed distance field learns a sphere from silhouettes and normals."""

import sys

import torch
from torch import nn

from fieldwatch import Declared, Run, Terms, Window

STEPS = 200
RAYS = 64
SAMPLES = 24
MASK = Window(0, 119)
NORMAL = Window(60)


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(3, 48), nn.Softplus(100), nn.Linear(48, 48), nn.Softplus(100), nn.Linear(48, 1)
        )
        self.sharpness = nn.Parameter(torch.tensor(2.0))

    def distance(self, points: torch.Tensor) -> torch.Tensor:
        return self.network(points).squeeze(-1) + points.norm(dim=-1) - 0.8

    def gradient(self, points: torch.Tensor) -> torch.Tensor:
        points = points.requires_grad_()
        return torch.autograd.grad(self.distance(points).sum(), points, create_graph=True)[0]


def draw_rays() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    origins = nn.functional.normalize(torch.randn(RAYS, 3), dim=-1) * 2
    aims = torch.randn(RAYS, 3) * 0.35
    directions = nn.functional.normalize(aims - origins, dim=-1)
    closest = origins - (origins * directions).sum(-1, keepdim=True) * directions
    return origins, directions, (closest.norm(dim=-1) < 0.5).float()


def render(
    field: Field, origins: torch.Tensor, directions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    depths = torch.linspace(1.0, 3.0, SAMPLES + 1)
    edges = origins[:, None] + depths[None, :, None] * directions[:, None]
    occupancy = torch.sigmoid(field.distance(edges) * field.sharpness.exp())
    alpha = ((occupancy[:, :-1] - occupancy[:, 1:]) / (occupancy[:, :-1] + 1e-5)).clamp(0, 1)
    clear = torch.cumprod(torch.cat([torch.ones(len(alpha), 1), 1 - alpha + 1e-7], dim=1), dim=1)[:, :-1]
    weights = alpha * clear
    middles = (edges[:, :-1] + edges[:, 1:]) / 2
    gradients = field.gradient(middles.reshape(-1, 3)).reshape(middles.shape)
    surface = (weights[..., None] * middles).sum(1)
    return weights.sum(1).clamp(1e-4, 1 - 1e-4), gradients, surface


def learning_rate(step: int) -> float:
    return 5e-3 * (min(step / 20, 1.0) if step < 20 else 0.5 ** (step / 100))


def main() -> None:
    torch.manual_seed(0)
    field = Field()
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-3)

    with Run(
        sys.argv[1] if len(sys.argv) > 1 else "runs/adopt_neus",
        declared=Declared(windows={"mask": MASK, "normal": NORMAL}),
    ) as run:
        run.track(field=field, optimizer=optimizer, groups={"field": field.network, "sharpness": [field.sharpness]})
        run.resume()
        for step in run.steps(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step.index)
            origins, directions, hit = draw_rays()
            opacity, gradients, surface = render(field, origins, directions)
            eikonal = (gradients.norm(dim=-1) - 1).square().mean()
            terms = Terms(eikonal=(0.1, eikonal))
            if step.index in MASK:
                mask = nn.functional.binary_cross_entropy(opacity, hit)
                terms |= Terms(mask=(1.0, mask))
            if step.index in NORMAL:
                normals = nn.functional.normalize(field.gradient(surface.detach()), dim=-1)
                truth = nn.functional.normalize(surface.detach(), dim=-1)
                normal = ((1 - (normals * truth).sum(-1)) * hit).mean()
                terms |= Terms(normal=(0.5, normal))

            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer, clip=1000.0)
            if step.every(50):
                print(f"step {step.index + 1} loss {terms.total.item():.9f}")

    radius = field.distance(torch.eye(3) * 0.5).abs().max().item()
    print(f"distance at the true surface {radius:.9f}")
    print("weights", sum(p.double().sum().item() for p in field.parameters()))


if __name__ == "__main__":
    main()
