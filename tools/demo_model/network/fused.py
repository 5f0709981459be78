"""The read of a hyper-connection as one pass over memory in C (`fused.c`), with its backward."""

from __future__ import annotations

import torch

from .kernels import c_function

STREAMS, SIZE, RANK, LOW = 4, 256, 32, 40
"""The geometry fused.c is written for: the low-rank product and the injection gates share rows of LOW values."""

_read = c_function("fused.c", "connection_read", 7, 2, 1)
_read_backward = c_function("fused.c", "connection_read_backward", 12, 2)


@torch.library.custom_op("demo::connection_read", mutates_args=())
def connection_read(
    wide: torch.Tensor, weight: torch.Tensor, joint: torch.Tensor, up: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """wide [N,4H], norm weight [4H], joint [rank + gates, 4H], up [4H,rank] -> read [N,H], low [N,LOW], 1/rms [N,4].

    low holds the rank products, then the inputs of the gates, then zeros.
    """
    wide = wide.contiguous()
    count = wide.shape[0]
    read, low = wide.new_empty(count, SIZE), wide.new_empty(count, LOW)
    inverse = wide.new_empty(count, STREAMS)
    _read(wide, weight, joint, up.contiguous(), read, low, inverse, count, joint.shape[0], eps)
    return read, low, inverse


@connection_read.register_fake
def _(wide, weight, joint, up, eps):
    count = wide.shape[0]
    return (
        wide.new_empty(count, SIZE),
        wide.new_empty(count, LOW),
        wide.new_empty(count, STREAMS),
    )


@torch.library.custom_op("demo::connection_read_backward", mutates_args=())
def connection_read_backward(
    read_grad: torch.Tensor,
    low_grad: torch.Tensor,
    wide: torch.Tensor,
    weight: torch.Tensor,
    joint: torch.Tensor,
    up: torch.Tensor,
    low: torch.Tensor,
    inverse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs = [x.contiguous() for x in (read_grad, low_grad, wide, weight, joint, up, low, inverse)]
    grads = inputs[2].new_empty(wide.shape), *(x.new_zeros(x.shape) for x in inputs[3:6])
    _read_backward(*inputs, *grads, wide.shape[0], joint.shape[0])
    return grads


@connection_read_backward.register_fake
def _(read_grad, low_grad, wide, weight, joint, up, low, inverse):
    return tuple(x.new_empty(x.shape) for x in (wide, weight, joint, up))


def _read_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4], *output[1:])


def _read_grads(ctx, read_grad, low_grad, _):
    return *connection_read_backward(read_grad, low_grad, *ctx.saved_tensors), None


connection_read.register_autograd(_read_grads, setup_context=_read_setup)
