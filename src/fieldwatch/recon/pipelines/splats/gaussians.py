"""The Gaussians that are trained: raw parameters with one row each, and what they mean."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch import InputError
from fieldwatch.recon.data import GaussianCloud
from fieldwatch.recon.geometry import colours_to_constant, harmonics_count, normalized_quaternions
from fieldwatch.recon.pipelines.splats.optimizer_state import replace_parameter
from fieldwatch.recon.pipelines.splats.spacing import Spacing, point_spacing
from fieldwatch.recon.render import VisibleAdam

PARAMETERS = ("means", "log_scales", "quaternions", "opacity_logits", "constant", "rest")
"""The parameters, in the order in which they are stored."""


class NotFiniteError(ValueError):
    """A parameter, or something that densification reads, holds NaN or an infinite value."""


class Rows(NamedTuple):
    """Parameters of some Gaussians, detached."""

    means: Float[Tensor, "n 3"]
    log_scales: Float[Tensor, "n 3"]
    quaternions: Float[Tensor, "n 4"]
    opacity_logits: Float[Tensor, "n"]
    constant: Float[Tensor, "n 3"]
    rest: Float[Tensor, "n functions 3"]


class _LiveParameter(Mapping[str, Tensor]):
    """A group of one parameter, looked up at every access: it follows when the parameter is replaced."""

    def __init__(self, owner: "Gaussians", name: str) -> None:
        self._owner = owner
        self._name = name

    def __getitem__(self, key: str) -> Tensor:
        if key != self._name:
            raise KeyError(key)
        return getattr(self._owner, key)  # get_parameter, which takes paths apart, takes five times as long

    def __iter__(self) -> Iterator[str]:
        return iter((self._name,))

    def __len__(self) -> int:
        return 1


class Gaussians(nn.Module):
    """Trained Gaussians. Raw values are those of splat files; the properties are the inputs of renderers.

    When rows come or go every parameter is replaced by a new one (torch holds on to the old shape while a graph that
    used it is alive). Optimizers added by `stepped_by` follow, row by row, and `run.track(groups=gaussians.groups())`
    looks parameters up where they are now. Gradients do not survive: densify after the optimizer's step.

    A stored state restores whatever its number of Gaussians, with the optimizers' parameters replaced alike; it does
    not matter whether the Gaussians or the optimizer are restored first.

    Args:
        rows: the parameters; copied.

    Raises:
        ValueError: no rows, or tensors that are not of one number of Gaussians.
        NotFiniteError: a value that is not finite.
    """

    means: nn.Parameter
    log_scales: nn.Parameter
    quaternions: nn.Parameter
    opacity_logits: nn.Parameter
    constant: nn.Parameter
    rest: nn.Parameter

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        if not len(rows.means) or len({len(part) for part in rows}) > 1:
            raise ValueError(
                f"Gaussians need one row or more in every tensor, the same number in all; got "
                f"{', '.join(f'{name} {len(part)}' for name, part in zip(PARAMETERS, rows, strict=True))}"
            )
        for name, part in zip(PARAMETERS, rows, strict=True):
            self.register_parameter(name, nn.Parameter(part.detach().clone()))
        self._optimizers: list[Optimizer] = []
        self.register_load_state_dict_pre_hook(_resize_for_state)
        self.refuse_not_finite()

    @classmethod
    def from_points(
        cls,
        points: Float[Tensor, "n 3"],
        colours: UInt8[Tensor, "n 3"] | Float[Tensor, "n 3"],
        *,
        degree: int = 3,
        opacity: float = 0.1,
        spacing: Spacing | Float[Tensor, " n"] = "mean",
    ) -> Self:
        """Put a round Gaussian on every point (Kerbl 2023, section 5.1).

        Args:
            points: positions, world units.
            colours: 0 .. 255 as bytes, or 0 .. 1.
            degree: of the harmonics, 0 .. 3; those above 0 start at zero.
            opacity: of all, above 0 and below 1.
            spacing: their standard deviations, or how to find them from the three nearest points.

        Raises:
            InputError: an opacity or a spacing out of bounds, or too few points to find one.
            NotFiniteError: a value that is not finite.
        """
        if not 0 < opacity < 1:
            raise InputError(f"the starting opacity is {opacity}: it must lie between 0 and 1, 0.1 is customary")
        points = points.float()
        refuse_not_finite("points", points)
        sizes = point_spacing(points, 3, spacing) if isinstance(spacing, str) else spacing.to(points)
        unit_colours = colours.to(points) / (1.0 if colours.is_floating_point() else 255.0)
        count = len(points)
        rows = Rows(
            means=points,
            log_scales=sizes.log()[:, None].repeat(1, 3),
            quaternions=points.new_tensor([1.0, 0.0, 0.0, 0.0]).repeat(count, 1),
            opacity_logits=points.new_full((count,), math.log(opacity / (1 - opacity))),
            constant=colours_to_constant(unit_colours),
            rest=points.new_zeros(count, harmonics_count(degree) - 1, 3),
        )
        return cls(rows)

    @classmethod
    def in_box(  # noqa: PLR0913  a box, and what they look like
        cls,
        count: int,
        low: Float[Tensor, "3"],
        high: Float[Tensor, "3"],
        *,
        degree: int = 3,
        opacity: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Scatter Gaussians of random colours evenly in a box, for scenes without points.

        Args:
            count: two or more.
            low: the corner with the least coordinates, world units.
            high: the corner with the largest.
            degree: of the harmonics.
            opacity: of all.
            generator: on the CPU; None is torch's own.

        Raises:
            ValueError: fewer than two, or a box without a volume.
        """
        if count < 2 or not bool((high > low).all()):
            raise ValueError(
                f"{count} Gaussians in a box from {low.tolist()} to {high.tolist()} were asked for: it takes two or "
                "more, and a box with low < high on all axes"
            )
        positions = torch.rand(count, 3, generator=generator)
        colours = torch.rand(count, 3, generator=generator)
        points = low + (high - low) * positions.to(low)
        return cls.from_points(points, colours.to(low), degree=degree, opacity=opacity)

    @classmethod
    def from_cloud(cls, cloud: GaussianCloud) -> Self:
        """Take over stored Gaussians, value by value; Mip-Splatting's filter is fused into scales and opacities.

        Raises:
            ValueError: there are none.
            NotFiniteError: a value that is not finite.
        """
        fused = cloud.fused()
        return cls(Rows(*(getattr(fused, name) for name in PARAMETERS)))

    def to_cloud(self) -> GaussianCloud:
        """Return a copy on the host, as files hold them."""
        return GaussianCloud(**{name: part.cpu().clone() for name, part in self.rows()._asdict().items()})

    def __len__(self) -> int:
        return len(self.means)

    @property
    def scales(self) -> Float[Tensor, "n 3"]:
        """Standard deviations along the own axes, world units."""
        return self.log_scales.exp()

    @property
    def opacities(self) -> Float[Tensor, " n"]:
        """Opacities, 0 .. 1."""
        return self.opacity_logits.sigmoid()

    @property
    def unit_quaternions(self) -> Float[Tensor, "n 4"]:
        """Rotations w, x, y, z of length 1."""
        return normalized_quaternions(self.quaternions)

    @property
    def harmonics(self) -> tuple[Float[Tensor, "n 1 3"], Float[Tensor, "n functions 3"]]:
        """Coefficients of degree 0, and of the higher degrees, as `splat` takes them."""
        return self.constant[:, None, :], self.rest

    @property
    def degree(self) -> int:
        """Degree of the harmonics that are held, 0 .. 3."""
        # A degree has (degree + 1)^2 functions; the constant one is held apart.
        return math.isqrt(self.rest.shape[1] + 1) - 1

    def degree_at(self, step: int, every: int = 1000) -> int:
        """Degree of the harmonics in use at a step: one more every so many steps; all at once where `every` is 0."""
        return min(step // every, self.degree) if every > 0 else self.degree

    def rows(self, chosen: Int[Tensor, " n"] | None = None) -> Rows:
        """Raw values of chosen Gaussians, copied; the live values of all, detached, where none are chosen."""
        parts = [self.get_parameter(name).detach() for name in PARAMETERS]
        return Rows(*(parts if chosen is None else [part[chosen] for part in parts]))

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """One live group per parameter, for `run.track(groups=gaussians.groups())`; without those that hold nothing."""
        return {name: _LiveParameter(self, name) for name in PARAMETERS if self.get_parameter(name).numel()}

    def stepped_by(self, optimizer: Optimizer) -> None:
        """Add an optimizer that follows: whenever rows come or go, its parameters and its state do so too."""
        if all(known is not optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers that follow."""
        return tuple(self._optimizers)

    def rearrange(self, surviving: Int[Tensor, " surviving"], added: Rows | None = None) -> None:
        """Keep some rows, in the order named, and append new ones, with moments of zero.

        Args:
            surviving: numbers of the rows that stay.
            added: new Gaussians.

        Raises:
            ValueError: nothing would be left.
        """
        if not len(surviving) and (added is None or not len(added.means)):
            raise ValueError(
                f"all {len(self)} Gaussians would go and none come: nothing would be left to train; lower the opacity "
                "or raise the size at which Gaussians are pruned, or look for what made them transparent"
            )
        for name in PARAMETERS:
            old = self.get_parameter(name)
            # One parameter after the other, so that the copies of all are never in memory beside all originals.
            rows = old.detach()[surviving]
            new = nn.Parameter(rows if added is None else torch.cat([rows, getattr(added, name)]))
            self._replace(name, new, surviving)

    def _replace(self, name: str, new: nn.Parameter, surviving: Int[Tensor, " surviving"] | None) -> None:
        old = self.get_parameter(name)
        self.register_parameter(name, new)
        replace_parameter(self._optimizers, old, new, surviving)
        for optimizer in self._optimizers:
            if isinstance(optimizer, VisibleAdam):
                optimizer.visible = None  # the old row numbers now mean other rows, or rows that do not exist

    def refuse_not_finite(self) -> None:
        """Raise `NotFiniteError`, naming parameter and Gaussian, if any value is not finite."""
        for name, part in self.rows()._asdict().items():
            refuse_not_finite(name, part)


def refuse_not_finite(name: str, values: Tensor) -> None:
    """Raise `NotFiniteError`, naming the tensor and its first such row, if any value is not finite."""
    finite = values.isfinite()
    if not bool(finite.all()):
        rows = (~finite).flatten(1).any(1) if values.dim() > 1 else ~finite
        first = int(rows.nonzero()[0])
        raise NotFiniteError(
            f"{name} of Gaussian {first} is not finite ({values[first].flatten()[:4].tolist()}; {int(rows.sum())} of "
            f"{len(values)} rows are): go back to the last checkpoint, and see which step's gradient did it"
        )


def _resize_for_state(module: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Give the parameters the number of rows of a state, before it is loaded."""
    if not isinstance(module, Gaussians):
        return
    stored = {name: state[prefix + name] for name in PARAMETERS if prefix + name in state}
    counts = {len(part) for part in stored.values()}
    if len(stored) < len(PARAMETERS) or len(counts) != 1 or counts == {0}:
        found = ", ".join(f"{len(part)} {name}" for name, part in stored.items()) or "nothing"
        raise ValueError(
            f"the stored Gaussians have {found}: wanted is the same number above 0 of each of {', '.join(PARAMETERS)}; "
            "the state is of something else, or damaged"
        )
    for name, part in stored.items():
        if part.shape[1:] != module.get_parameter(name).shape[1:]:
            raise ValueError(
                f"{name} is stored with rows of shape {tuple(part.shape[1:])}, here they are "
                f"{tuple(module.get_parameter(name).shape[1:])}: make the Gaussians with the degree of harmonics that "
                "the stored ones have"
            )
    count = counts.pop()
    if count != len(module):
        for name in PARAMETERS:
            old = module.get_parameter(name)
            module._replace(name, nn.Parameter(old.new_zeros(count, *old.shape[1:])), None)
