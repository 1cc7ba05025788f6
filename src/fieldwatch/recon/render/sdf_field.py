"""A neural SDF with gradient: a hash encoding and a small network (NeuS, Wang 2021; Instant-NSR).

The gradient is computed layer by layer instead of by autograd, so one ordinary backward pass trains it. With one hidden
layer in single precision, everything runs in one native kernel on the CPU (`sdf_field_native`), and in own kernels on a
GPU (`sdf_field_gpu`).
"""

from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float, Int32
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm as apply_weight_norm
from torch.nn.utils.parametrize import is_parametrized

from fieldwatch import InputError
from fieldwatch.recon.render.encoding import HashEncoding
from fieldwatch.recon.render.native import native_available
from fieldwatch.recon.render.sdf_field_initialization import sphere_weights
from fieldwatch.recon.render.sdf_field_native import fits_native, fused_distance
from fieldwatch.recon.render.sdf_gpu.field import fits_gpu, gpu_distance, normalized_weights
from fieldwatch.recon.render.sdf_gpu.trial import sdf_kernels_problem

_MOST_LAYERS = 4


class HashSdf(nn.Module):
    """Signed distance f(x) = MLP([x, hash features of x]) in the box [-1, 1]^3; positive outside the surface.

    The hidden layers use Softplus; the last layer is linear. The encoding maps the box to the unit cube,
    u = (x + 1) / 2, so df/dx = dMLP/dx + (dF/du)^T dMLP/dF / 2.

    The initial field is the sphere |x| = radius with gradients of nearly unit length, for any seed (a more uniform
    version of the geometric initialization of Atzmon 2020, SAL). The directions of the first layer are a randomly
    rotated Fibonacci lattice with mean zero. Further layers start as the identity, and the features have weight 0.
    Scale and bias of the last layer are calibrated such that on the sphere the mean of f is 0 and the mean of its
    outward slope 1. Random directions, as published, dent a sphere of 64 units by several hundredths. This sphere is
    round to 0.01 with gradient lengths within 0.02 of 1 from 64 units on, and to 0.025 from 32 units on.

    One hidden layer of up to 256 units over up to 64 features, in single precision on the CPU, runs in one native
    kernel. On a GPU, one hidden layer over up to 64 features in single precision runs in own kernels, which repeat
    to the bit. Everything else runs in plain torch. Without gradients to track, `forward` stores nothing. A NaN point
    gives NaN without affecting other points.

    Args:
        encoding: hash encoding of points in the unit cube.
        hidden: units per layer, at least 8.
        layers: number of hidden layers, 1 to 4.
        radius: radius of the initial sphere.
        sharpness: beta of Softplus, log(1 + exp(beta a)) / beta.
        weight_norm: whether to use weight normalization (Salimans 2016), as in NeuS.
        generator: random generator of the rotation; None uses the default one of torch.

    Attributes:
        encoding: hash encoding.
        hidden: hidden layers.
        last: last layer.
        sharpness: beta of Softplus.

    Raises:
        ValueError: a setting is out of range.
    """

    def __init__(  # noqa: PLR0913  the settings of a field
        self,
        *,
        encoding: HashEncoding,
        hidden: int = 64,
        layers: int = 1,
        radius: float = 0.6,
        sharpness: float = 100.0,
        weight_norm: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _in_range("layers", layers, 1, _MOST_LAYERS)
        # Validates its settings before any parameter is allocated.
        start = sphere_weights(hidden, layers, radius, sharpness, generator)
        self.encoding = encoding
        self.sharpness = sharpness
        widths = [3 + encoding.features, *[hidden] * layers]
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.last = nn.Linear(hidden, 1)
        with torch.no_grad():
            for linear, (weight, bias) in zip([*self._hidden(), self.last], start, strict=True):
                # The other columns belong to the hash features: weight 0, so the initial field is a sphere.
                linear.weight.zero_()[:, : weight.shape[1]] = weight
                linear.bias.copy_(bias)
        if weight_norm:
            for linear in (*self._hidden(), self.last):
                apply_weight_norm(linear)

    def forward(self, points: Float[Tensor, "n 3"]) -> Float[Tensor, "n"]:
        """Return signed distances; gradients flow to all parameters and, once only, to the points.

        For df/dx use `with_gradient`: a backward pass with `create_graph=True` through the native kernel raises
        RuntimeError.

        Raises:
            ValueError: a point is outside [-1, 1], or precision or device differ from those of the field.
        """
        if self.fits_cpu(points):
            return self._fused(points, sloped=False)[0]
        if self.fits_gpu(points):
            return self._on_gpu(points, sloped=False)
        features = self.encoding(self._unit(points))
        return self.last(self._activations(points, features)[-1])[:, 0]

    def with_gradient(self, points: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, "n"], Float[Tensor, "n 3"]]:
        """Return signed distances and their gradients df/dx in units of the box.

        Both outputs can be differentiated once, with respect to all parameters and the points.

        Raises:
            ValueError: a point is outside [-1, 1], or precision or device differ from those of the field.
        """
        if self.fits_cpu(points):
            return self._fused(points, sloped=True)
        if self.fits_gpu(points):
            return self._on_gpu(points, sloped=True)
        # Everything the kernel does not support runs in plain torch.
        features, jacobian = self.encoding.with_jacobian(self._unit(points))
        outputs = self._activations(points, features)
        # Backpropagation written out, from the last layer to the inputs; every product stays in the graph.
        backpropagated = self.last.weight
        for linear, output in zip(reversed(self._hidden()), reversed(outputs), strict=True):
            # The derivative of Softplus is sigmoid(beta a) = 1 - exp(-beta h), with h its output.
            backpropagated = (backpropagated * -torch.expm1(-self.sharpness * output)) @ linear.weight
        # The features depend on u = (x + 1) / 2, so the chain rule has a factor of 1/2.
        gradient = backpropagated[:, :3] + torch.einsum("nf,nfd->nd", backpropagated[:, 3:], jacobian) / 2
        return self.last(outputs[-1])[:, 0], gradient

    def activate(self, levels: float) -> None:
        """Activate the first `levels` levels of the encoding; a fractional part fades in the next one.

        Raises:
            ValueError: `levels` is not between 0 and the number of levels.
        """
        self.encoding.activate(levels)

    def fits_cpu(self, points: Tensor) -> bool:
        """Return whether the native kernel supports these points. The kernel then checks their range."""
        table = self.encoding.table
        # All three checks are cheap; compiling the kernels comes last.
        single = (points.dtype, table.dtype, self.last.weight.dtype) == (torch.float32,) * 3
        here = points.device.type == table.device.type == "cpu"
        small = len(self.hidden) == 1 and fits_native(self.encoding, self.last.in_features)
        return single and here and small and native_available()[0]

    def fits_gpu(self, points: Tensor) -> bool:
        """Return whether the GPU kernels support these points and work on this machine."""
        weight = self.last.bias  # weight normalization would compute `last.weight`
        fits = fits_gpu(self.encoding, len(self.hidden), points, self.encoding.table, weight)
        return fits and sdf_kernels_problem() is None

    def on_gpu(
        self,
        points: Float[Tensor, "n 3"],
        count: Int32[Tensor, "1"] | None,
        faults: Int32[Tensor, "1"],
        *,
        sloped: bool,
        network: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n 3"] | None]:
        """Return signed distances and, if `sloped`, their gradients, without a read by the host.

        Args:
            points: points in [-1, 1].
            count: number of points, if the others are only room.
            faults: fault bits, to which that of points outside the box is added.
            sloped: whether to compute the gradients.
            network: result of `network`, which costs a launch; None computes it.
        """
        network = self.network() if network is None else network
        return gpu_distance(points, self.encoding, network, self.sharpness, sloped=sloped, count=count, faults=faults)[
            :2
        ]

    def network(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return weight and bias of the first hidden layer and of the last layer."""
        first = self._hidden()[0]
        last = self.last
        if first.bias.is_cuda and is_parametrized(first, "weight") and sdf_kernels_problem() is None:
            weights = normalized_weights(_length_and_direction(first), _length_and_direction(last))
            return weights[0], first.bias, weights[1], last.bias
        return first.weight, first.bias, last.weight, last.bias

    def _on_gpu(self, points: Tensor, *, sloped: bool) -> Any:
        distance, gradient, faults = gpu_distance(points, self.encoding, self.network(), self.sharpness, sloped=sloped)
        if int(faults):
            refuse_beyond(points, int(((points < -1) | (points > 1)).any(dim=-1).sum()))
        return distance if not sloped else (distance, gradient)

    def _fused(self, points: Tensor, *, sloped: bool) -> Any:
        """Return distances and, if `sloped`, their gradients."""
        distance, gradient, outside = fused_distance(
            points, self.encoding, self.network(), self.sharpness, sloped=sloped
        )
        refuse_beyond(points, outside)
        return distance, gradient

    def _hidden(self) -> list[nn.Linear]:
        return [layer for layer in self.hidden if isinstance(layer, nn.Linear)]

    def _activations(self, points: Tensor, features: Tensor) -> list[Tensor]:
        """Return the outputs of the hidden layers."""
        outputs = [torch.cat([points, features], dim=-1)]
        for linear in self._hidden():
            outputs.append(functional.softplus(linear(outputs[-1]), beta=self.sharpness))
        return outputs[1:]

    def _unit(self, points: Tensor) -> Tensor:
        refuse_beyond(points, int(((points < -1) | (points > 1)).any(dim=-1).sum()))
        return (points + 1) / 2


def _length_and_direction(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return the parameters of a weight with weight normalization."""
    of_weight: Any = cast("Any", linear.parametrizations).weight
    return of_weight.original0, of_weight.original1


def refuse_beyond(points: Tensor, count: int) -> None:
    """Raise an error if points are outside the box.

    Raises:
        ValueError: `count` is not 0.
    """
    if count:
        least, most = (round(bound.item(), 3) for bound in (points.detach().min(), points.detach().max()))
        raise ValueError(
            f"{count} of {len(points)} points are outside the field's box [-1, 1]; coordinates range from {least} to "
            f"{most}: clip the rays to the box, or scale the scene into it"
        )


def _in_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{name} of a neural SDF must be between {least} and {most}, got {value}")
