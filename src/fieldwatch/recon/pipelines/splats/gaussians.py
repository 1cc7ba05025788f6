"""Trainable Gaussians: raw parameters with one row per Gaussian, and the quantities derived from them."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch import InputError
from fieldwatch.recon.data import GaussianCloud
from fieldwatch.recon.geometry import colors_to_constant, harmonics_count, normalized_quaternions
from fieldwatch.recon.pipelines.splats.optimizer_state import replace_parameter
from fieldwatch.recon.pipelines.splats.spacing import Spacing, point_spacing
from fieldwatch.recon.render import VisibleAdam
from fieldwatch.recon.render.splats import activated, splat_kernels_problem

PARAMETERS = ("means", "log_scales", "quaternions", "opacity_logits", "constant", "rest")
"""Names of the parameters, in the order in which they are stored."""


class NotFiniteError(ValueError):
    """A parameter or a statistic of densification is NaN or infinite."""


class Rows(NamedTuple):
    """Raw parameters of Gaussians, one row each, detached."""

    means: Float[Tensor, "n 3"]
    log_scales: Float[Tensor, "n 3"]
    quaternions: Float[Tensor, "n 4"]
    opacity_logits: Float[Tensor, "n"]
    constant: Float[Tensor, "n 3"]
    rest: Float[Tensor, "n functions 3"]


class _LiveParameter(Mapping[str, Tensor]):
    """Group of one parameter that is looked up at every access, so that it stays valid when rows change."""

    def __init__(self, owner: "Gaussians", name: str) -> None:
        self._owner = owner
        self._name = name

    def __getitem__(self, key: str) -> Tensor:
        if key != self._name:
            raise KeyError(key)
        return getattr(self._owner, key)  # five times as fast as get_parameter, which parses dotted paths

    def __iter__(self) -> Iterator[str]:
        return iter((self._name,))

    def __len__(self) -> int:
        return 1


class Gaussians(nn.Module):
    """Trainable Gaussians. The parameters are the raw values of splat files, the properties the inputs of renderers.

    Adding or removing rows replaces every parameter by a new one, because torch keeps the old shape as long as a graph
    that uses it is alive. Optimizers registered by `stepped_by` are updated row by row, and groups from
    `run.track(groups=gaussians.groups())` look up the current parameters. Gradients do not survive: densify after the
    optimizer's step.

    `load_state_dict` accepts any number of Gaussians and replaces the optimizers' parameters accordingly. Gaussians and
    optimizers can be restored in any order.

    Args:
        rows: raw parameters; copied.

    Raises:
        ValueError: There are no rows, or the tensors have different numbers of rows.
        NotFiniteError: A value is not finite.
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
                f"expected the same number of rows, at least 1, in every tensor of Gaussians, got "
                f"{', '.join(f'{name} {len(part)}' for name, part in zip(PARAMETERS, rows, strict=True))}"
            )
        for name, part in zip(PARAMETERS, rows, strict=True):
            self.register_parameter(name, nn.Parameter(part.detach().clone()))
        self._optimizers: list[Optimizer] = []
        # Runs before torch compares shapes, which would reject another number of Gaussians.
        self.register_load_state_dict_pre_hook(_resize_for_state)
        self.refuse_not_finite()

    @classmethod
    def from_points(
        cls,
        points: Float[Tensor, "n 3"],
        colors: UInt8[Tensor, "n 3"] | Float[Tensor, "n 3"],
        *,
        degree: int = 3,
        opacity: float = 0.1,
        spacing: Spacing | Float[Tensor, " n"] = "mean",
    ) -> Self:
        """Create an isotropic Gaussian at every point (Kerbl 2023, section 5.1).

        Args:
            points: positions, world units.
            colors: RGB, 0 .. 255 as bytes or 0 .. 1 as floats.
            degree: SH degree, 0 .. 3; coefficients of degree 1 and above start at zero.
            opacity: initial opacity of all Gaussians, in (0, 1).
            spacing: standard deviations, world units, or the method to derive them from the three nearest points.

        Raises:
            InputError: The opacity or spacing is out of bounds, or there are too few points to derive the spacing.
            NotFiniteError: A value is not finite.
        """
        if not 0 < opacity < 1:
            raise InputError(f"initial opacity must be between 0 and 1, got {opacity}; 3DGS uses 0.1")
        points = points.float()
        refuse_not_finite("points", points)
        sizes = point_spacing(points, 3, spacing) if isinstance(spacing, str) else spacing.to(points)
        # Point clouds store bytes; other callers pass floats.
        unit_colors = colors.to(points) / (1.0 if colors.is_floating_point() else 255.0)
        count = len(points)
        rows = Rows(
            means=points,
            log_scales=sizes.log()[:, None].repeat(1, 3),
            # The identity rotation: isotropic Gaussians have no orientation yet.
            quaternions=points.new_tensor([1.0, 0.0, 0.0, 0.0]).repeat(count, 1),
            opacity_logits=points.new_full((count,), math.log(opacity / (1 - opacity))),
            constant=colors_to_constant(unit_colors),
            rest=points.new_zeros(count, harmonics_count(degree) - 1, 3),
        )
        return cls(rows)

    @classmethod
    def in_box(  # noqa: PLR0913  a box, and the appearance of the Gaussians
        cls,
        count: int,
        low: Float[Tensor, "3"],
        high: Float[Tensor, "3"],
        *,
        degree: int = 3,
        opacity: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Create Gaussians at uniformly random positions in a box with random colors, for scenes without points.

        Args:
            count: number of Gaussians, at least 2.
            low: corner of the box with the smallest coordinates, world units.
            high: opposite corner.
            degree: SH degree, 0 .. 3.
            opacity: initial opacity of all Gaussians.
            generator: CPU generator; None uses torch's default.

        Raises:
            ValueError: The count is less than 2, or the box has no volume.
        """
        if count < 2 or not bool((high > low).all()):
            raise ValueError(
                "expected at least 2 Gaussians in a box with low < high on all axes, got "
                f"{count} Gaussians in a box from {low.tolist()} to {high.tolist()}"
            )
        positions = torch.rand(count, 3, generator=generator)
        colors = torch.rand(count, 3, generator=generator)
        points = low + (high - low) * positions.to(low)
        return cls.from_points(points, colors.to(low), degree=degree, opacity=opacity)

    @classmethod
    def from_cloud(cls, cloud: GaussianCloud) -> Self:
        """Create Gaussians from a stored cloud; Mip-Splatting's 3D filter is fused into scales and opacities.

        Raises:
            ValueError: The cloud is empty.
            NotFiniteError: A value is not finite.
        """
        fused = cloud.fused()
        return cls(Rows(*(getattr(fused, name) for name in PARAMETERS)))

    def to_cloud(self) -> GaussianCloud:
        """Return a copy on the host, in the layout of splat files."""
        return GaussianCloud(**{name: part.cpu().clone() for name, part in self.rows()._asdict().items()})

    def __len__(self) -> int:
        return len(self.means)

    @property
    def scales(self) -> Float[Tensor, "n 3"]:
        """Standard deviations along each Gaussian's axes, world units."""
        return self.log_scales.exp()

    @property
    def opacities(self) -> Float[Tensor, " n"]:
        """Opacities, 0 .. 1."""
        return self.opacity_logits.sigmoid()

    def shapes(self) -> tuple[Float[Tensor, "n 3"], Float[Tensor, " n"]]:
        """Return scales and opacities; on a GPU, our own kernels compute both at once."""
        if self.means.is_cuda and self.means.dtype == torch.float32 and splat_kernels_problem() is None:
            return activated(self.log_scales, self.opacity_logits)
        return self.scales, self.opacities

    @property
    def unit_quaternions(self) -> Float[Tensor, "n 4"]:
        """Rotations as unit quaternions w, x, y, z."""
        return normalized_quaternions(self.quaternions)

    @property
    def harmonics(self) -> tuple[Float[Tensor, "n 1 3"], Float[Tensor, "n functions 3"]]:
        """SH coefficients of degree 0 and of the higher degrees, as `splat` expects them."""
        return self.constant[:, None, :], self.rest

    @property
    def degree(self) -> int:
        """SH degree of the stored coefficients, 0 .. 3."""
        # SH up to a degree have (degree + 1)^2 functions; the constant one is stored separately.
        return math.isqrt(self.rest.shape[1] + 1) - 1

    def degree_at(self, step: int, every: int = 1000) -> int:
        """Return the SH degree in use at a step: it increases by one at every `every`-th step; 0 uses all degrees."""
        return min(step // every, self.degree) if every > 0 else self.degree

    def rows(self, chosen: Int[Tensor, " n"] | None = None) -> Rows:
        """Return copies of the raw values of the chosen rows; None returns the live values of all rows, detached."""
        parts = [self.get_parameter(name).detach() for name in PARAMETERS]
        return Rows(*(parts if chosen is None else [part[chosen] for part in parts]))

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """Return one live group per non-empty parameter, for `run.track(groups=gaussians.groups())`."""
        return {name: _LiveParameter(self, name) for name in PARAMETERS if self.get_parameter(name).numel()}

    def stepped_by(self, optimizer: Optimizer) -> None:
        """Register an optimizer whose parameters and state are updated whenever rows are added or removed."""
        if all(known is not optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """Registered optimizers."""
        return tuple(self._optimizers)

    def rearrange(self, surviving: Int[Tensor, " surviving"], added: Rows | None = None) -> None:
        """Keep the given rows, in the given order, and append new ones with zero moments.

        Args:
            surviving: numbers of the rows to keep.
            added: rows to append; None appends none.

        Raises:
            ValueError: No Gaussian would be left.
        """
        if not len(surviving) and (added is None or not len(added.means)):
            raise ValueError(
                f"all {len(self)} Gaussians would be removed and none added: lower --least-opacity (0.005 is usual) or "
                "raise --largest-size (0.1 is usual), or find out why the Gaussians became transparent"
            )
        for name in PARAMETERS:
            old = self.get_parameter(name)
            # One parameter at a time, so that peak memory does not hold two copies of all of them.
            rows = old.detach()[surviving]
            new = nn.Parameter(rows if added is None else torch.cat([rows, getattr(added, name)]))
            self._replace(name, new, surviving)

    def _replace(self, name: str, new: nn.Parameter, surviving: Int[Tensor, " surviving"] | None) -> None:
        old = self.get_parameter(name)
        self.register_parameter(name, new)
        replace_parameter(self._optimizers, old, new, surviving)
        for optimizer in self._optimizers:
            if isinstance(optimizer, VisibleAdam):
                optimizer.visible = None  # the old row numbers are invalid now

    def refuse_not_finite(self) -> None:
        """Raise `NotFiniteError` with the parameter and Gaussian if any value is not finite."""
        for name, part in self.rows()._asdict().items():
            refuse_not_finite(name, part)


def refuse_not_finite(name: str, values: Tensor) -> None:
    """Raise `NotFiniteError` with the tensor's name and its first non-finite row if any value is not finite."""
    # One synchronization with the device; the search for the row follows only in case of an error.
    finite = values.isfinite()
    if not bool(finite.all()):
        rows = (~finite).flatten(1).any(1) if values.dim() > 1 else ~finite
        first = int(rows.nonzero()[0])
        raise NotFiniteError(
            f"{name} of Gaussian {first} is not finite ({values[first].flatten()[:4].tolist()}; {int(rows.sum())} of "
            f"{len(values)} rows are affected): resume from the last checkpoint and check the gradients of the steps "
            "since"
        )


def _resize_for_state(module: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Resize the parameters to the number of rows of a state before it is loaded."""
    if not isinstance(module, Gaussians):
        return
    stored = {name: state[prefix + name] for name in PARAMETERS if prefix + name in state}
    counts = {len(part) for part in stored.values()}
    if len(stored) < len(PARAMETERS) or len(counts) != 1 or counts == {0}:
        content = ", ".join(f"{len(part)} {name}" for name, part in stored.items()) or "nothing"
        raise ValueError(
            f"the stored Gaussians have {content}, expected the same number above 0 of each of "
            f"{', '.join(PARAMETERS)}; the state belongs to another module or is damaged"
        )
    for name, part in stored.items():
        if part.shape[1:] != module.get_parameter(name).shape[1:]:
            raise ValueError(
                f"{name} is stored with rows of shape {tuple(part.shape[1:])}, expected "
                f"{tuple(module.get_parameter(name).shape[1:])}: create the Gaussians with the SH degree of the stored "
                "ones"
            )
    count = counts.pop()
    # The old rows have nothing to do with the stored ones: no optimizer state is carried over.
    if count != len(module):
        for name in PARAMETERS:
            old = module.get_parameter(name)
            module._replace(name, nn.Parameter(old.new_zeros(count, *old.shape[1:])), None)
