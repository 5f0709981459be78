"""Operations that PyTorch lacks or runs slowly on a CPU, as custom ops that `torch.compile` can keep whole.

For the chunked delta rule, `unit_lower_inverse` is its forward substitution and `delta_scan` its loop over chunks, both in
C; the expert operations are a sort by expert, row gathers in C and one matrix product per expert.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch


def _library(source: Path) -> ctypes.CDLL:
    """Compile a C helper once per version of the sources, outside the repository."""
    version = max(file.stat().st_mtime_ns for file in source.parent.glob("*.[ch]"))
    target = Path(tempfile.gettempdir()) / f"demo_{source.stem}_{version}.so"
    if not target.exists():
        scratch = target.with_suffix(f".{id(target)}.tmp")
        flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", str(scratch), str(source), "-lm"], check=True)
        scratch.replace(target)
    return ctypes.CDLL(str(target))


def c_function(source: str, name: str, tensors: int, counts: int, floats: int = 0) -> Callable:
    """A C function that takes so many contiguous tensors, then so many longs, then so many floats."""
    function = getattr(_library(Path(__file__).with_name(source)), name)
    function.argtypes = [ctypes.c_void_p] * tensors + [ctypes.c_long] * counts + [ctypes.c_float] * floats
    function.restype = None

    def call(*arguments):
        function(*(x.data_ptr() for x in arguments[:tensors]), *arguments[tensors:])

    return call


_unit_lower_inverse = c_function("substitution.c", "unit_lower_inverse", 2, 2)
_delta_scan = c_function("scan.c", "delta_scan", 8, 2)
_delta_scan_backward = c_function("scan.c", "delta_scan_backward", 13, 2)
_gather_rows = c_function("fused.c", "gather_rows", 3, 3)
_gather_sum = c_function("fused.c", "gather_sum", 3, 3)
_gather_weighted = c_function("fused.c", "gather_weighted", 4, 3)
_gather_weighted_backward = c_function("fused.c", "gather_weighted_backward", 6, 3)


SCAN_SIDE = 64


@torch.library.custom_op("demo::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(strict: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 for a batch of strictly lower triangular float32 matrices A."""
    strict = strict.contiguous()
    size = strict.shape[-1]
    out = torch.empty_like(strict)
    _unit_lower_inverse(strict, out, strict.numel() // (size * size), size)
    return out


@unit_lower_inverse.register_fake
def _(strict):
    return torch.empty(strict.shape, dtype=strict.dtype)


def _keep_output(ctx, inputs, output):
    ctx.save_for_backward(output)


def _inverse_backward(ctx, grad):
    (inverse,) = ctx.saved_tensors
    transposed = inverse.transpose(-1, -2)
    return -(transposed @ grad @ transposed)


unit_lower_inverse.register_autograd(_inverse_backward, setup_context=_keep_output)


@torch.library.custom_op("demo::grouped_linear", mutates_args=())
def grouped_linear(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Rows sorted by expert [N,I] times weight [E,O,I] -> [N,O]; counts[e] rows belong to expert e."""
    out = torch.empty(rows.shape[0], weight.shape[1], dtype=rows.dtype)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            torch.mm(rows[start : start + count], weight[expert].t(), out=out[start : start + count])
        start += count
    return out


@grouped_linear.register_fake
def _(rows, weight, counts):
    return rows.new_empty(rows.shape[0], weight.shape[1])


@torch.library.custom_op("demo::grouped_linear_backward", mutates_args=())
def grouped_linear_backward(
    grad: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    grad = grad.contiguous()
    rows_grad, weight_grad = torch.empty_like(rows), torch.empty_like(weight)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        part = slice(start, start + count)
        if count:
            torch.mm(grad[part], weight[expert], out=rows_grad[part])
            torch.mm(grad[part].t(), rows[part], out=weight_grad[expert])
        else:
            weight_grad[expert].zero_()
        start += count
    return rows_grad, weight_grad


@grouped_linear_backward.register_fake
def _(grad, rows, weight, counts):
    return torch.empty_like(rows), torch.empty_like(weight)


def _keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _grouped_backward(ctx, grad):
    rows, weight, counts = ctx.saved_tensors
    rows_grad, weight_grad = grouped_linear_backward(grad, rows, weight, counts)
    return rows_grad, weight_grad, None


grouped_linear.register_autograd(_grouped_backward, setup_context=_keep_inputs)


@torch.library.custom_op("demo::gather_sum", mutates_args=())
def gather_sum(rows: torch.Tensor, order: torch.Tensor, copies: int) -> torch.Tensor:
    """Row t of the result is the sum of rows[order[t * copies + c]] over c."""
    rows = rows.contiguous()
    out = rows.new_empty(order.shape[0] // copies, rows.shape[1])
    _gather_sum(rows, order, out, out.shape[0], rows.shape[1], copies)
    return out


@gather_sum.register_fake
def _(rows, order, copies):
    return rows.new_empty(order.shape[0] // copies, rows.shape[1])


@torch.library.custom_op("demo::spread", mutates_args=())
def spread(rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor, copies: int) -> torch.Tensor:
    """Row r of the result is rows[order[r] // copies]: every token's row, once per chosen expert, sorted by expert."""
    rows = rows.contiguous()
    out = rows.new_empty(order.shape[0], rows.shape[1])
    _gather_rows(rows, order, out, order.shape[0], rows.shape[1], copies)
    return out


@spread.register_fake
def _(rows, order, inverse, copies):
    return rows.new_empty(order.shape[0], rows.shape[1])


def _spread_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[2])
    ctx.copies = inputs[3]


def _spread_backward(ctx, grad):
    (inverse,) = ctx.saved_tensors
    return gather_sum(grad, inverse, ctx.copies), None, None, None


spread.register_autograd(_spread_backward, setup_context=_spread_setup)


@torch.library.custom_op("demo::combine", mutates_args=())
def combine(rows: torch.Tensor, share: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """rows [N*k,H] sorted by expert, share [N,k] -> each token's weighted sum of its experts' rows [N,H]."""
    rows, share = rows.contiguous(), share.contiguous()
    out = rows.new_empty(share.shape[0], rows.shape[1])
    _gather_weighted(rows, share, inverse, out, share.shape[0], rows.shape[1], share.shape[1])
    return out


@combine.register_fake
def _(rows, share, inverse):
    return rows.new_empty(share.shape[0], rows.shape[1])


@torch.library.custom_op("demo::combine_backward", mutates_args=())
def combine_backward(
    grad: torch.Tensor, rows: torch.Tensor, share: torch.Tensor, inverse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    grad, rows, share = grad.contiguous(), rows.contiguous(), share.contiguous()
    grads = torch.empty_like(rows), torch.empty_like(share)
    _gather_weighted_backward(grad, rows, share, inverse, *grads, share.shape[0], rows.shape[1], share.shape[1])
    return grads


@combine_backward.register_fake
def _(grad, rows, share, inverse):
    return rows.new_empty(rows.shape), share.new_empty(share.shape)


def _combine_backward(ctx, grad):
    rows, share, inverse = ctx.saved_tensors
    return *combine_backward(grad, rows, share, inverse), None


combine.register_autograd(_combine_backward, setup_context=_keep_inputs)


@torch.library.custom_op("demo::sort_by_expert", mutates_args=())
def sort_by_expert(chosen: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Chosen experts [N,k] -> the order that sorts the N*k choices, its inverse, and the count per expert."""
    flat = chosen.reshape(-1)
    order = torch.argsort(flat, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel())
    return order, inverse, torch.bincount(flat, minlength=experts)


@sort_by_expert.register_fake
def _(chosen, experts):
    n = chosen.numel()
    return chosen.new_empty(n), chosen.new_empty(n), chosen.new_empty(experts)


@torch.library.custom_op("demo::delta_scan", mutates_args=())
def delta_scan(
    update: torch.Tensor, erase: torch.Tensor, query: torch.Tensor, key: torch.Tensor, kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loop over chunks of the delta rule; all inputs [B,H,N,C,*], kept [B,H,N].

    C and the last dimensions are SCAN_SIDE. For each chunk: fresh = update - erase S, read = query S, then S = kept S + key^T fresh. -> fresh, read, all S.
    """
    update, erase, query, key, kept = (x.contiguous() for x in (update, erase, query, key, kept))
    batch, heads, chunks, length, size = key.shape
    if not length == size == update.shape[-1] == SCAN_SIDE:
        raise ValueError(f"delta_scan is written for chunks, keys and values of {SCAN_SIDE}, not {key.shape[-2:]}.")
    fresh, read = torch.empty_like(update), torch.empty_like(update)
    states = update.new_empty(chunks, batch, heads, size, update.shape[-1])
    _delta_scan(update, erase, query, key, kept, fresh, read, states, batch * heads, chunks)
    return fresh, read, states


@delta_scan.register_fake
def _(update, erase, query, key, kept):
    batch, heads, chunks, _, size = key.shape
    states = update.new_empty(chunks, batch, heads, size, update.shape[-1])
    return torch.empty_like(update), torch.empty_like(update), states


@torch.library.custom_op("demo::delta_scan_backward", mutates_args=())
def delta_scan_backward(
    fresh_grad: torch.Tensor,
    read_grad: torch.Tensor,
    fresh: torch.Tensor,
    states: torch.Tensor,
    erase: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    kept: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs = [x.contiguous() for x in (fresh_grad, read_grad, fresh, states, erase, query, key, kept)]
    grads = tuple(torch.empty_like(inputs[i]) for i in (2, 4, 5, 6, 7))
    _delta_scan_backward(*inputs, *grads, kept.shape[0] * kept.shape[1], kept.shape[2])
    return grads


@delta_scan_backward.register_fake
def _(fresh_grad, read_grad, fresh, states, erase, query, key, kept):
    return tuple(torch.empty_like(x) for x in (fresh, erase, query, key, kept))


def _scan_setup(ctx, inputs, output):
    ctx.save_for_backward(output[0], output[2], *inputs[1:])


def _scan_backward(ctx, fresh_grad, read_grad, _):
    return delta_scan_backward(fresh_grad, read_grad, *ctx.saved_tensors)


delta_scan.register_autograd(_scan_backward, setup_context=_scan_setup)
