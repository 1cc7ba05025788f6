"""Forward and backward pass of a video network as CUDA graphs, which the host launches as a whole.

Not yet run on a GPU. Loss, guard, record, rate and update stay outside. A graph is captured at the first batch, tried
there against the network itself on other inputs, and captured again if parameters have moved to other memory. Replays
read the parameters where they are. Gradients are new tensors; outputs last until the next replay.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.pipelines.video.config import VideoConfig
from fieldwatch.recon.pipelines.video.models import Prediction, Query, VideoModel

EAGER_STEPS = 3
"""First steps of a training, which run without graphs: the checks of the loop look at the network's batches there."""
WARM_UPS = 3
"""Passes before a capture, in which libraries choose algorithms and take memory; as in torch's documentation."""
_CLOSE = 1e-4  # largest difference in the trial, relative to the largest value
_FLAG = "--cuda-graphs"


def refuse_graphs(config: VideoConfig, device: torch.device, processes: int) -> None:
    """Refuse CUDA graphs where they cannot be captured.

    Args:
        config: settings of the run.
        device: device of the run.
        processes: number of processes of the run.

    Raises:
        InputError: the device is no GPU, there are several processes, or another setting excludes graphs.
    """
    if not config.cuda_graphs:
        return
    if device.type != "cuda":
        raise InputError(f"{_FLAG} needs a GPU, got device {device}: leave it out, or train with --device cuda")
    if processes > 1:
        raise InputError(f"{_FLAG} needs a single process, got {processes}: leave it out")
    if config.amp or config.compile:
        other = "--amp" if config.amp else "--compile"
        raise InputError(f"{_FLAG} and {other} exclude each other: leave one of them out")


class _Captured(NamedTuple):
    """Graphs of one kind of batch, and the memory that they read and write."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    upstream: list[Tensor]
    gradients: list[Tensor | None]
    forward: Any
    backward: Any
    addresses: list[int]


class GraphedNetwork:
    """Calls a network by replaying CUDA graphs of its forward and backward pass.

    Args:
        model: network on a GPU, without dropout or other random numbers, whose forward pass changes no buffer.
    """

    def __init__(self, model: VideoModel) -> None:
        self._model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._captured: dict[bool, _Captured] = {}

    def __call__(self, query: Query, *, embed: bool = True) -> Prediction:
        """Render the units of a query, as the network does.

        Raises:
            InputError: the batch has other sizes than the first one, capturing failed, or the graphs compute something
                else than the network.
        """
        inputs = _tensors_of(query)
        captured = self._captured.get(embed)
        if captured is not None:
            _refuse_other_sizes(captured.inputs, inputs)
            if captured.addresses != self._addresses():
                captured = None  # parameters were replaced, as a restored checkpoint may do
        if captured is None:
            captured = self._capture(query, embed=embed)
            self._captured[embed] = captured
        return _prediction(_Replay.apply(captured, len(inputs), *inputs, *self._parameters))

    def _addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in (*self._parameters, *self._model.buffers())]

    def _capture(self, query: Query, *, embed: bool) -> _Captured:
        """Return graphs that were compared with the network."""
        with _without_hooks(self._model):
            _refuse_state(self._model, query, embed=embed)
            try:
                captured = self._recorded(query, embed=embed)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                first_line = str(error).strip().splitlines()[0]
                raise InputError(f"{_FLAG}: the network cannot be captured ({first_line}): leave it out") from error
            self._try(captured, query, embed=embed)
        return captured

    def _recorded(self, query: Query, *, embed: bool) -> _Captured:
        static = _static(query)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            passes = [self._eager(static, embed=embed)[0] for _ in range(WARM_UPS)]
        torch.cuda.current_stream().wait_stream(stream)
        upstream = [torch.zeros_like(output) for output in passes[-1]]
        pool = torch.cuda.graph_pool_handle()
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads of the toolkit may allocate pinned memory meanwhile.
        how: dict[str, Any] = {"pool": pool, "capture_error_mode": "thread_local"}
        with torch.enable_grad():
            with torch.cuda.graph(forward, **how):
                outputs = _outputs(self._model(static, embed=embed))
            with torch.cuda.graph(backward, **how):
                # The graph is kept, so that no replay overwrites what the forward pass saved: it may be read again.
                gradients = torch.autograd.grad(
                    outputs, self._parameters, upstream, retain_graph=True, allow_unused=True
                )
        # No other capture has this pool, so nothing takes the memory of what torch's graph had saved once it is gone.
        memory = [output.detach() for output in outputs]
        return _Captured(_tensors_of(static), memory, upstream, list(gradients), forward, backward, self._addresses())

    def _eager(
        self, query: Query, *, embed: bool, upstream: Sequence[Tensor] | None = None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return outputs and gradients of the network itself."""
        with torch.enable_grad():
            outputs = _outputs(self._model(query, embed=embed))
            given = [torch.ones_like(output) for output in outputs] if upstream is None else list(upstream)
            gradients = torch.autograd.grad(outputs, self._parameters, given, allow_unused=True)
        return [output.detach() for output in outputs], list(gradients)

    def _try(self, captured: _Captured, query: Query, *, embed: bool) -> None:
        """Compare the graphs with the network on the batch, on another one, and on the batch again."""
        other = _changed(query)
        for number, batch in enumerate((query, other, query)):
            inputs = _tensors_of(batch)
            found = _Replay.apply(captured, len(inputs), *inputs, *self._parameters)
            upstream = [_pattern(output, number) for output in found]
            given = torch.autograd.grad(found, self._parameters, upstream, allow_unused=True)
            outputs, gradients = self._eager(batch, embed=embed, upstream=upstream)
            pairs = [*zip(outputs, found, strict=True), *zip(gradients, given, strict=True)]
            for wanted, value in pairs:
                if not _close(wanted, value):
                    raise InputError(
                        f"{_FLAG}: the graphs of this network compute something else than the network itself on this "
                        "GPU: leave it out, and report it with the output of `fieldwatch doctor --json`"
                    )


class _Replay(torch.autograd.Function):
    """The passes of the graphs, in torch's own graph."""

    @staticmethod
    def forward(ctx: Any, captured: _Captured, count: int, *tensors: Tensor) -> Any:
        for memory, value in zip(captured.inputs, tensors[:count], strict=True):
            memory.copy_(value)
        captured.forward.replay()
        ctx.captured = captured
        ctx.count = count
        # Until the next replay: a step has computed its loss and gradients by then.
        return tuple(output.view_as(output) for output in captured.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        captured: _Captured = ctx.captured
        for memory, value in zip(captured.upstream, gradients, strict=True):
            memory.copy_(value)
        captured.backward.replay()
        known = [gradient for gradient in captured.gradients if gradient is not None]
        copies = iter(torch._foreach_mul(known, 1.0))  # noqa: SLF001  # pyright: ignore[reportPrivateImportUsage]  a single launch
        given = [None if gradient is None else next(copies) for gradient in captured.gradients]
        return (None, None, *[None] * ctx.count, *given)


def _tensors_of(query: Query) -> list[Tensor]:
    return [tensor for tensor in (query.t, query.x, query.y, query.frames) if tensor is not None]


def _static(query: Query) -> Query:
    """Return a copy of a query, which graphs read."""
    frames = None if query.frames is None else query.frames.clone()
    return Query(t=query.t.clone(), x=query.x.clone(), y=query.y.clone(), frames=frames)


def _changed(query: Query) -> Query:
    """Return another query of the same sizes, within the video."""
    frames = None if query.frames is None else 1 - query.frames
    return replace(query, t=query.t * 0.5, x=1 - query.x, y=1 - query.y, frames=frames)


def _outputs(prediction: Prediction) -> list[Tensor]:
    return [part for part in (prediction.rgb, prediction.embedding) if part is not None]


def _prediction(outputs: Sequence[Tensor]) -> Prediction:
    return Prediction(rgb=outputs[0], embedding=outputs[1] if len(outputs) > 1 else None)


def _pattern(like: Tensor, number: int) -> Tensor:
    """Return numbers of a gradient that differ from entry to entry; random ones would change the training's."""
    values = torch.linspace(-1, 1 + number, like.numel(), device=like.device, dtype=like.dtype)
    return values.reshape(like.shape)


def _close(wanted: Tensor | None, found: Tensor | None) -> bool:
    if wanted is None or found is None:
        # Parameters without a gradient have none in either.
        return wanted is None and found is None
    if not wanted.numel():
        return True
    return float((wanted - found.detach()).abs().max()) <= _CLOSE * float(wanted.abs().max())


def _refuse_other_sizes(known: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    before, now = ([(tuple(each.shape), each.dtype) for each in tensors] for tensors in (known, inputs))
    if before != now:
        raise InputError(
            f"{_FLAG} needs batches of one size, got {now[0][0][0]} units after {before[0][0][0]}: leave it out; "
            "batches are cut if the GPU runs out of memory, and --batch makes them smaller from the start"
        )


def _refuse_state(model: VideoModel, query: Query, *, embed: bool) -> None:
    """Refuse a network whose forward pass leaves traces, which replays or a trial would leave too.

    Raises:
        InputError: the network draws random numbers or changes a buffer.
    """
    versions = [buffer._version for buffer in model.buffers()]  # noqa: SLF001  counts writes
    random = torch.cuda.get_rng_state()
    with torch.no_grad():
        model(query, embed=embed)
    if not torch.equal(random, torch.cuda.get_rng_state()):
        raise InputError(f"{_FLAG} needs a network without random numbers: leave it out")
    if versions != [buffer._version for buffer in model.buffers()]:  # noqa: SLF001  as above
        raise InputError(f"{_FLAG} needs a network whose forward pass changes no buffer: leave it out")


@contextmanager
def _without_hooks(model: VideoModel) -> Iterator[None]:
    """Leave out the forward hooks, which measure batches: a replay does not call them."""
    modules = list(model.modules())
    hooks: list[Mapping[int, Any]] = [module._forward_hooks for module in modules]  # noqa: SLF001  torch offers no other way
    for module in modules:
        module._forward_hooks = type(module._forward_hooks)()  # noqa: SLF001  as above
    try:
        yield
    finally:
        for module, before in zip(modules, hooks, strict=True):
            module._forward_hooks = before  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]  as above
