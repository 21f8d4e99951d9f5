"""Results and gradients of single operations in f64, computed by PyTorch.

    pip install torch safetensors numpy
    python3 make_ops.py

Writes ops.safetensors. For each case: its operands, `CASE_g` (the cotangent of the result, drawn
at random), `CASE_y` (the result) and `CASE_d_NAME` (the gradient of sum(y * g)). The parameters of
the cells are in cells.safetensors, under their names in ops.tg. ops.tg computes all of it again.
"""

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

RNG = np.random.default_rng(7)
OUT = {}
CELLS = {}


def numbers(*shape):
    return torch.from_numpy(RNG.standard_normal(shape)).requires_grad_()


def whole(high, *shape):
    return torch.from_numpy(RNG.integers(0, high, shape, dtype=np.int32))


def case(name, function, **operands):
    """Stores one case. Operands without a gradient are integers."""
    y = function(**operands)
    g = torch.from_numpy(RNG.standard_normal(tuple(y.shape)))
    wanted = {key: x for key, x in operands.items() if x.requires_grad}
    grads = torch.autograd.grad((y * g).sum(), list(wanted.values()))
    OUT[f"{name}_y"], OUT[f"{name}_g"] = y, g
    for key, x in operands.items():
        OUT[f"{name}_{key}"] = x
    for key, grad in zip(wanted, grads):
        OUT[f"{name}_d_{key}"] = grad


def cell(name, module, state, gates):
    """A recurrent cell: `state` initial states, rows of the weights in `gates` parts."""
    module = module.double()
    theirs = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    x = numbers(3, 5)
    states = [numbers(3, 7) for _ in range(state)]
    result = module(x, states[0] if state == 1 else tuple(states))
    results = [result] if state == 1 else list(result)
    g = [torch.from_numpy(RNG.standard_normal((3, 7))) for _ in results]
    total = sum((a * b).sum() for a, b in zip(results, g))
    params = dict(module.named_parameters())
    assert params["weight_ih"].shape == (gates * 7, 5)
    grads = torch.autograd.grad(total, [x, *states, *params.values()])
    letters = ["h", "c"][:state]
    OUT[f"{name}_x"] = x
    OUT[f"{name}_d_x"] = grads[0]
    for k, letter in enumerate(letters):
        OUT[f"{name}_{letter}"] = states[k]
        OUT[f"{name}_g_{letter}"] = g[k]
        OUT[f"{name}_y_{letter}"] = results[k]
        OUT[f"{name}_d_{letter}"] = grads[1 + k]
    for (key, value), grad in zip(params.items(), grads[1 + state :]):
        CELLS[f"{name}.{theirs[key]}"] = value
        OUT[f"{name}_d_{theirs[key]}"] = grad


def conv(**options):
    return lambda x, w, b=None: F.conv2d(x, w, b, **options)


def main():
    torch.manual_seed(7)
    case("conv", conv(), x=numbers(2, 3, 6, 5), w=numbers(4, 3, 3, 2), b=numbers(4))
    case("conv_point", conv(), x=numbers(2, 3, 4, 4), w=numbers(5, 3, 1, 1), b=numbers(5))
    case("conv_padded", conv(padding=(2, 1)), x=numbers(2, 3, 5, 4), w=numbers(4, 3, 3, 3))
    case("conv_stride", conv(stride=(2, 3), padding=1), x=numbers(2, 3, 8, 9), w=numbers(4, 3, 3, 3), b=numbers(4))
    case("conv_dilated", conv(dilation=(2, 1), padding=2), x=numbers(1, 2, 7, 6), w=numbers(3, 2, 3, 3), b=numbers(3))
    case("conv_groups", conv(groups=2, stride=2, padding=1), x=numbers(2, 4, 6, 6), w=numbers(6, 2, 3, 3), b=numbers(6))
    case("conv_depthwise", conv(groups=4, padding=1), x=numbers(2, 4, 5, 5), w=numbers(4, 1, 3, 3), b=numbers(4))

    case("max_pool", lambda x: F.max_pool2d(x, 3, stride=2, padding=1), x=numbers(2, 3, 7, 8))
    case("avg_pool", lambda x: F.avg_pool2d(x, (2, 3), stride=(1, 2), padding=(1, 1)), x=numbers(2, 3, 6, 7))

    attention = F.scaled_dot_product_attention
    case("attention", lambda q, k, v: attention(q, k, v), q=numbers(2, 2, 5, 4), k=numbers(2, 2, 7, 4), v=numbers(2, 2, 7, 3))
    case("attention_causal", lambda q, k, v: attention(q, k, v, is_causal=True, scale=0.3), q=numbers(2, 2, 6, 4), k=numbers(2, 2, 6, 4), v=numbers(2, 2, 6, 4))

    case("layer_norm", lambda x, w, b: F.layer_norm(x, (6,), w, b, eps=1e-5), x=numbers(3, 4, 6), w=numbers(6), b=numbers(6))
    case("rms_norm", lambda x, w: F.rms_norm(x, (6,), w, eps=1e-6), x=numbers(3, 4, 6), w=numbers(6))
    case("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True, eps=1e-5), x=numbers(4, 3, 2, 5), w=numbers(3), b=numbers(3))

    case("softmax", lambda x: F.softmax(x, dim=1), x=numbers(3, 5, 2))
    case("log_softmax", lambda x: F.log_softmax(x, dim=-1), x=numbers(3, 5))
    case("cross_entropy", lambda x, labels: F.cross_entropy(x, labels.long(), reduction="none"), x=numbers(6, 5), labels=whole(5, 6))

    case("gelu", lambda x: F.gelu(x, approximate="tanh"), x=numbers(40))
    case("silu", lambda x: F.silu(x), x=numbers(40))
    case("embedding", lambda table, ids: F.embedding(ids.long(), table), table=numbers(6, 3), ids=whole(6, 4, 5))
    case("std", lambda x: torch.std(x, dim=1, correction=1), x=numbers(4, 6))
    case("logsumexp", lambda x: torch.logsumexp(x, dim=1), x=numbers(4, 6))
    case("norm", lambda x: torch.linalg.vector_norm(x, dim=1), x=numbers(4, 6))

    case("bce_logits", lambda x, t: F.binary_cross_entropy_with_logits(x, t).reshape(1), x=numbers(4, 6), t=numbers(4, 6))
    case("huber", lambda x, t: F.huber_loss(x, t, delta=0.7).reshape(1), x=numbers(4, 6), t=numbers(4, 6))

    cell("rnn", torch.nn.RNNCell(5, 7), 1, 1)
    cell("lstm", torch.nn.LSTMCell(5, 7), 2, 4)
    cell("gru", torch.nn.GRUCell(5, 7), 1, 3)

    plain = {key: value.detach().clone().contiguous() for key, value in OUT.items()}
    save_file(plain, "ops.safetensors")
    save_file({key: value.detach().clone() for key, value in CELLS.items()}, "cells.safetensors")
    print(f"{len(plain)} tensors")


if __name__ == "__main__":
    main()
