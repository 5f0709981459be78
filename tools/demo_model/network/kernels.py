"""Operations that PyTorch lacks or runs slowly on a CPU, as custom ops that `torch.compile` can keep whole.

`unit_lower_inverse` is the forward substitution of the chunked delta rule, in C; the expert operations are a sort by
expert, a row permutation whose backward is the inverse permutation, and one matrix product per expert.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

_SOURCE = Path(__file__).with_name("substitution.c")


def _library() -> ctypes.CDLL:
    """Compile the C helper once per version of its source, outside the repository."""
    target = Path(tempfile.gettempdir()) / f"demo_substitution_{_SOURCE.stat().st_mtime_ns}.so"
    if not target.exists():
        scratch = target.with_suffix(f".{id(target)}.tmp")
        flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", str(scratch), str(_SOURCE)], check=True)
        scratch.replace(target)
    library = ctypes.CDLL(str(target))
    library.unit_lower_inverse.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    return library


_LIBRARY = _library()


@torch.library.custom_op("demo::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(strict: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 for a batch of strictly lower triangular float32 matrices A."""
    strict = strict.contiguous()
    size = strict.shape[-1]
    out = torch.empty_like(strict)
    _LIBRARY.unit_lower_inverse(strict.data_ptr(), out.data_ptr(), strict.numel() // (size * size), size)
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


@torch.library.custom_op("demo::spread", mutates_args=())
def spread(rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor, copies: int) -> torch.Tensor:
    """Row r of the result is rows[order[r] // copies]: every token's row, once per chosen expert, sorted by expert."""
    return rows.index_select(0, order // copies)


@spread.register_fake
def _(rows, order, inverse, copies):
    return rows.new_empty(order.shape[0], rows.shape[1])


def _spread_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[2])
    ctx.copies = inputs[3]


def _spread_backward(ctx, grad):
    (inverse,) = ctx.saved_tensors
    gathered = permute(grad, inverse, inverse)
    return gathered.view(-1, ctx.copies, grad.shape[1]).sum(1), None, None, None


spread.register_autograd(_spread_backward, setup_context=_spread_setup)


@torch.library.custom_op("demo::permute", mutates_args=())
def permute(rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return rows.contiguous().index_select(0, order)


@permute.register_fake
def _(rows, order, inverse):
    return rows.new_empty(rows.shape)


def _permute_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1], inputs[2])


def _permute_backward(ctx, grad):
    order, inverse = ctx.saved_tensors
    return permute(grad, inverse, order), None, None


permute.register_autograd(_permute_backward, setup_context=_permute_setup)


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

    For each chunk: fresh = update - erase S, read = query S, then S = kept S + key^T fresh. -> fresh, read, all S.
    """
    fresh, read = torch.empty_like(update), torch.empty_like(update)
    batch, heads, chunks, _, size = key.shape
    states = update.new_zeros(chunks, batch, heads, size, update.shape[-1])
    for i in range(chunks):
        state = states[i]
        fresh[:, :, i] = update[:, :, i] - erase[:, :, i] @ state
        read[:, :, i] = query[:, :, i] @ state
        if i < chunks - 1:
            torch.add(
                state * kept[:, :, i, None, None], key[:, :, i].transpose(-1, -2) @ fresh[:, :, i], out=states[i + 1]
            )
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
    update_grad, erase_grad, query_grad, key_grad = (torch.empty_like(x) for x in (fresh, erase, query, key))
    kept_grad = torch.empty_like(kept)
    after = torch.zeros_like(states[0])
    for i in reversed(range(states.shape[0])):
        state = states[i]
        total = fresh_grad[:, :, i] + key[:, :, i] @ after
        update_grad[:, :, i] = total
        key_grad[:, :, i] = fresh[:, :, i] @ after.transpose(-1, -2)
        query_grad[:, :, i] = read_grad[:, :, i] @ state.transpose(-1, -2)
        erase_grad[:, :, i] = -(total @ state.transpose(-1, -2))
        kept_grad[:, :, i] = (state * after).sum((-1, -2))
        after = after * kept[:, :, i, None, None] + query[:, :, i].transpose(-1, -2) @ read_grad[:, :, i]
        after -= erase[:, :, i].transpose(-1, -2) @ total
    return update_grad, erase_grad, query_grad, key_grad, kept_grad


@delta_scan_backward.register_fake
def _(fresh_grad, read_grad, fresh, states, erase, query, key, kept):
    return tuple(torch.empty_like(x) for x in (fresh, erase, query, key, kept))


def _scan_setup(ctx, inputs, output):
    ctx.save_for_backward(output[0], output[2], *inputs[1:])


def _scan_backward(ctx, fresh_grad, read_grad, _):
    return delta_scan_backward(fresh_grad, read_grad, *ctx.saved_tensors)


delta_scan.register_autograd(_scan_backward, setup_context=_scan_setup)
