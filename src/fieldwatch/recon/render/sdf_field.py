"""A neural signed distance: a hash encoding and a small network, with its gradient (NeuS, Wang 2021; Instant-NSR).

The gradient is written out layer by layer instead of taken by autograd, so it can be trained with one ordinary backward
pass. With one hidden layer in single precision on the CPU everything runs in one native kernel (`sdf_field_native`).
"""

from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm as normalised

from fieldwatch import InputError
from fieldwatch.recon.render.encoding import HashEncoding
from fieldwatch.recon.render.native import native_available
from fieldwatch.recon.render.sdf_field_initialization import sphere_weights
from fieldwatch.recon.render.sdf_field_native import fits_native, fused_distance

_MOST_LAYERS = 4


class HashSdf(nn.Module):
    """Signed distance f(x) = MLP([x, hash features of x]) in the box [-1, 1]^3; positive outside the surface.

    The hidden layers are Softplus with a sharpness; the last is linear. The encoding sees the box as the unit cube,
    u = (x + 1) / 2, so df/dx = dMLP/dx + (dF/du)^T dMLP/dF / 2.

    It starts as the sphere |x| = radius with gradients of length near 1, whatever the seed (the geometric
    initialisation of Atzmon 2020, SAL, made even): the directions of the first layer are a Fibonacci lattice on the
    sphere, turned at random, of mean zero; further layers start as the identity; the features have weight 0; the last
    layer's scale and bias are calibrated so that on the sphere the mean of f is 0 and that of its slope outwards 1.
    Random directions, as published, dent a sphere of 64 units by several hundredths; this one is round to 0.01, with
    gradients within 0.02 of unit length, from 64 units on, and to 0.025 from 32 on.

    One hidden layer of up to 256 units over up to 64 features, in single precision on the CPU, runs in one native
    kernel, all else in plain torch. Without gradients to track, `forward` keeps nothing. A point that is NaN gives
    NaN, and leaves the others alone.

    Args:
        encoding: of points in the unit cube.
        hidden: units per layer, 8 or more.
        layers: hidden layers, 1 to 4.
        radius: of the sphere at the start.
        sharpness: beta of Softplus, log(1 + exp(beta a)) / beta.
        weight_norm: weights are length times direction per unit (Salimans 2016), as in NeuS.
        generator: draws the rotation; torch's default one, if None.

    Attributes:
        encoding: as given.
        hidden: the hidden layers.
        last: the last layer.
        sharpness: as given.

    Raises:
        ValueError: a setting is out of its range.
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
        start = sphere_weights(hidden, layers, radius, sharpness, generator)
        self.encoding = encoding
        self.sharpness = sharpness
        widths = [3 + encoding.features, *[hidden] * layers]
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.last = nn.Linear(hidden, 1)
        with torch.no_grad():
            for linear, (weight, bias) in zip([*self._hidden(), self.last], start, strict=True):
                # Further columns belong to the hash features: weight 0, so the field starts as a sphere.
                linear.weight.zero_()[:, : weight.shape[1]] = weight
                linear.bias.copy_(bias)
        if weight_norm:
            for linear in (*self._hidden(), self.last):
                normalised(linear)

    def forward(self, points: Float[Tensor, "n 3"]) -> Float[Tensor, "n"]:
        """Signed distance of points in the box; gradients flow to all parameters and, once only, to the points.

        For df/dx take `with_gradient`: a backward pass with `create_graph=True` through the native kernel raises
        RuntimeError.

        Raises:
            ValueError: a point is outside [-1, 1], or of another precision or device than the field.
        """
        if self._takes(points):
            return self._fused(points, sloped=False)[0]
        features = self.encoding(self._unit(points))
        return self.last(self._activations(points, features)[-1])[:, 0]

    def with_gradient(self, points: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, "n"], Float[Tensor, "n 3"]]:
        """Signed distance, and its gradient df/dx in units of the box.

        Gradients flow once more from both, to all parameters and to the points.

        Raises:
            ValueError: a point is outside [-1, 1], or of another precision or device than the field.
        """
        if self._takes(points):
            return self._fused(points, sloped=True)
        features, jacobian = self.encoding.with_jacobian(self._unit(points))
        outputs = self._activations(points, features)
        # Reverse mode by hand, from the last layer to the inputs; every product stays in the graph.
        backpropagated = self.last.weight
        for linear, output in zip(reversed(self._hidden()), reversed(outputs), strict=True):
            # Softplus' = sigmoid(beta a) = 1 - exp(-beta h)
            backpropagated = (backpropagated * -torch.expm1(-self.sharpness * output)) @ linear.weight
        # The features are those of u = (x + 1) / 2: their chain rule brings the factor 1/2.
        gradient = backpropagated[:, :3] + torch.einsum("nf,nfd->nd", backpropagated[:, 3:], jacobian) / 2
        return self.last(outputs[-1])[:, 0], gradient

    def activate(self, levels: float) -> None:
        """Let the first `levels` levels of the encoding count; a fraction fades the next one in.

        Raises:
            ValueError: not between 0 and the number of levels.
        """
        self.encoding.activate(levels)

    def _takes(self, points: Tensor) -> bool:
        """Whether the fused kernel runs on these points, which it checks itself."""
        table = self.encoding.table
        single = (points.dtype, table.dtype, self.last.weight.dtype) == (torch.float32,) * 3
        here = points.device.type == table.device.type == "cpu"
        small = len(self.hidden) == 1 and fits_native(self.encoding, self.last.in_features)
        return single and here and small and native_available()[0]

    def _fused(self, points: Tensor, *, sloped: bool) -> Any:
        """Distance and, where wanted, its gradient."""
        first = self._hidden()[0]
        network = (first.weight, first.bias, self.last.weight, self.last.bias)
        distance, gradient, outside = fused_distance(points, self.encoding, network, self.sharpness, sloped=sloped)
        refuse_beyond(points, outside)
        return distance, gradient

    def _hidden(self) -> list[nn.Linear]:
        return [layer for layer in self.hidden if isinstance(layer, nn.Linear)]

    def _activations(self, points: Tensor, features: Tensor) -> list[Tensor]:
        """Outputs of the hidden layers."""
        outputs = [torch.cat([points, features], dim=-1)]
        for linear in self._hidden():
            outputs.append(functional.softplus(linear(outputs[-1]), beta=self.sharpness))
        return outputs[1:]

    def _unit(self, points: Tensor) -> Tensor:
        refuse_beyond(points, int(((points < -1) | (points > 1)).any(dim=-1).sum()))
        return (points + 1) / 2


def refuse_beyond(points: Tensor, count: int) -> None:
    """Say how many points are outside the box.

    Raises:
        ValueError: there are such points.
    """
    if count:
        least, most = (round(bound.item(), 3) for bound in (points.detach().min(), points.detach().max()))
        raise ValueError(
            f"{count} of {len(points)} points are outside the field's box [-1, 1]; coordinates run from {least} to "
            f"{most}: cut the rays at the box, or scale the scene into it"
        )


def _in_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"a neural SDF needs {name} between {least} and {most}, got {value}")
