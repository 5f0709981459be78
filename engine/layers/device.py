"""The one place that knows on which device the arrays live, and what upstream offers there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import UnavailableError

__all__ = ["cap_allocator_cache", "gated_delta_kernel", "on_gpu", "product_layout", "recommended_memory_bytes"]


def on_gpu() -> bool:
    """True where MLX computes on a GPU (Metal)."""
    return mx.default_device() == mx.Device(mx.gpu)


def cap_allocator_cache(n_bytes: int) -> None:
    """Free buffers that MLX may keep on a GPU; its own limit there is all of the memory. A CPU keeps 32 MiB at most."""
    if on_gpu():
        mx.set_cache_limit(n_bytes)


def product_layout(weight: mx.array) -> mx.array:
    """weight [out, in] as the [in, out] right-hand side of products with few rows.

    The reference BLAS of CPU builds is twice as fast on float32 when that is contiguous; elsewhere the transpose is free.
    """
    if on_gpu() or weight.dtype != mx.float32:
        return weight.T
    laid_out = mx.contiguous(weight.T)
    mx.eval(laid_out)
    return laid_out


@cache
def gated_delta_kernel() -> Callable[..., Any] | None:
    """mlx-lm's Metal kernel of the gated delta rule, or None where there is none (CPU). Raises UnavailableError.

    Only the file that holds it is run, and that imports MLX alone: mlx-lm's package would import transformers.
    """
    if not on_gpu():
        return None
    package = importlib.util.find_spec("mlx_lm")
    for folder in (package.submodule_search_locations if package else None) or ():
        file = Path(folder, "models", "gated_delta.py")
        spec = importlib.util.spec_from_file_location("mlx_lm_gated_delta", file) if file.is_file() else None
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.gated_delta_kernel
    raise UnavailableError(
        "The library mlx-lm, whose Metal kernel this model needs, is not installed.", "Install qwen-chat again."
    )


def recommended_memory_bytes() -> int | None:
    """Metal's recommended working set, or None on a CPU."""
    if not on_gpu():
        return None
    return int(mx.device_info().get("max_recommended_working_set_size", 0)) or None
