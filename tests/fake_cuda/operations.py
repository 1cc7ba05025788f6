"""How torch's operations behave on CUDA: which wait, which add in no fixed order, which launch nothing.

Sources: the notes on nondeterminism of `torch.use_deterministic_algorithms`, the notes on CUDA semantics (asynchronous
execution), and the operations that refuse `torch.cuda.set_sync_debug_mode("error")`.
"""

from pathlib import Path

import torch

aten = torch.ops.aten

WAITING = {
    "_local_scalar_dense": "item()",
    "nonzero": "nonzero()",
    "masked_select": "masked_select()",
    "equal": "equal()",
    "is_nonzero": "bool()",
    "_unique2": "unique()",
    "unique_dim": "unique(dim)",
    "unique_consecutive": "unique_consecutive()",
    "bincount": "bincount()",
    "linalg_cholesky": "linalg.cholesky()",
    "linalg_eig": "linalg.eig()",
    "linalg_eigh": "linalg.eigh()",
    "_linalg_eigh": "linalg.eigh()",
    "_linalg_svd": "linalg.svd()",
    "linalg_lstsq": "linalg.lstsq()",
}
"""Operations whose result has a size or a value that the host needs, with their name in Python."""

UNORDERED = {
    "_adaptive_avg_pool2d_backward",
    "_embedding_bag",
    "adaptive_avg_pool2d_backward",
    "avg_pool3d_backward",
    "bincount",
    "convolution_backward",
    "cumsum",
    "embedding_bag",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "histc",
    "index_add",
    "index_add_",
    "index_reduce_",
    "max_pool2d_with_indices_backward",
    "max_unpool2d",
    "reflection_pad2d_backward",
    "replication_pad2d_backward",
    "replication_pad3d_backward",
    "scatter_add",
    "scatter_add_",
    "scatter_reduce",
    "scatter_reduce_",
    "upsample_bicubic2d_backward",
    "upsample_bilinear2d_backward",
    "upsample_linear1d_backward",
    "upsample_trilinear3d_backward",
}
"""Operations that add floating-point numbers with atomics on CUDA, unless deterministic algorithms are requested."""

VIEWS = {
    "_pin_memory",
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "chunk",
    "detach",
    "detach_",
    "diagonal",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "imag",
    "is_pinned",
    "is_same_size",
    "lift",
    "lift_fresh",
    "movedim",
    "narrow",
    "new_empty",
    "new_empty_strided",
    "permute",
    "real",
    "record_stream",
    "reshape",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "squeeze_",
    "swapaxes",
    "sym_size",
    "t",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "unsqueeze_",
    "view",
    "view_as_complex",
    "view_as_real",
}
"""Operations that launch no kernel."""

RESHAPED_IN_PLACE = {"resize_", "set_", "squeeze_", "t_", "transpose_", "unsqueeze_", "swapaxes_", "as_strided_"}
"""Operations that change the shape of a tensor in place, which a wrapper cannot follow."""

INDEXED = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._unsafe_index_put.default,
    aten._index_put_impl_.default,
}
"""Operations with a list of indices, which may be on the CPU, or masks."""

COPIES = {aten.copy_.default, aten.copy.default, aten._to_copy.default, aten._foreach_copy_.default}
"""Operations between two devices."""


WITHOUT_DETERMINISTIC_ALGORITHM = {
    "_adaptive_avg_pool2d_backward",
    "adaptive_avg_pool2d_backward",
    "avg_pool3d_backward",
    "cumsum",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "histc",
    "max_unpool2d",
    "reflection_pad2d_backward",
    "upsample_bicubic2d_backward",
    "upsample_bilinear2d_backward",
    "upsample_linear1d_backward",
    "upsample_trilinear3d_backward",
}
"""Those of `UNORDERED` that `torch.use_deterministic_algorithms` refuses; it has another way for the others."""

CPU_ONLY = set(Path(__file__).with_name("cpu_only_operations.txt").read_text("utf-8").splitlines())
"""Operations without a kernel for CUDA, from torch's CUDA build; see `list_cpu_only_operations.py`."""


def takes_host_numbers(operation: torch._ops.OpOverload) -> bool:
    """Whether tensors without dimensions on the CPU may accompany tensors of the device."""
    name = operation._schema.name.removeprefix("aten::")
    known = {"where", "lerp", "masked_fill", "masked_fill_", "clamp", "addcmul", "addcdiv", "fill_", "full_like", "pow"}
    return torch.Tag.pointwise in operation.tags or name in known or name.startswith("_foreach_")


def adds_unordered(name: str, arguments: tuple, keywords: dict) -> bool:
    """Whether an operation adds floating-point numbers in no fixed order."""
    if name == "convolution_backward":
        return not torch.backends.cudnn.deterministic
    if name == "cumsum":
        return arguments[0].dtype.is_floating_point
    if name == "bincount":
        return len(arguments) > 1 and arguments[1] is not None  # counts of integers are exact in any order
    if name in {"index_add", "index_add_", "scatter_add", "scatter_add_"} and not arguments[0].is_floating_point():
        return False  # sums of integers are exact in any order too
    return name in UNORDERED
