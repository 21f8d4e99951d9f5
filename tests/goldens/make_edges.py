"""Values and gradients at awkward points in f64, computed by PyTorch: kinks, ties, zeros, infinities, NaN.

    pip install torch safetensors numpy
    python3 make_edges.py

Writes edges.safetensors. For each case: its operands `CASE_a`, `CASE_b`, `CASE_c`, the result `CASE_y` and the
gradients of sum(y), `CASE_da` and so on. edges.tg computes all of it again. It also has what the language does
otherwise on purpose; those values are closed forms and stand there.
"""

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

INF, NAN = float("inf"), float("nan")
OUT = {}


def case(name, function, *operands):
    """Stores one case."""
    letters = "abc"[: len(operands)]
    operands = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in operands]
    y = function(*operands)
    grads = torch.autograd.grad(y.sum(), operands)
    OUT[f"{name}_y"] = y
    for letter, x, grad in zip(letters, operands, grads):
        OUT[f"{name}_{letter}"], OUT[f"{name}_d{letter}"] = x, grad


def main():
    kinks = [0.0, -0.0, 5e-324, -1.0, 2.0, NAN, INF, -INF]
    case("relu", torch.relu, kinks)
    case("max0", lambda x: torch.maximum(x, torch.zeros_like(x)), kinks)
    pair = [1, 1, NAN, 1, INF, INF, -INF, -0.0], [1, NAN, 1, 2, INF, 1, -INF, 0.0]
    case("maximum", torch.maximum, *pair)
    case("minimum", torch.minimum, *pair)
    rows = [[2, 2, 1], [INF, INF, 1], [-INF, -INF, -INF], [0, -1, -1]]
    case("row_max", lambda x: torch.amax(x, 1), rows)
    case("row_min", lambda x: torch.amin(x, 1), rows)
    case("abs", torch.abs, [0.0, -0.0, 5e-324, -1.0, 2.0, INF, -INF])

    domain = [0.0, -0.0, 4, -1, INF, NAN]
    case("sqrt", torch.sqrt, domain)
    case("rsqrt", torch.rsqrt, domain)
    case("recip", torch.reciprocal, domain)
    case("log", torch.log, domain)
    case("log1p", torch.log1p, [0.0, -1, -2, INF, NAN, 1e-20])
    case("exp", torch.exp, [0.0, 710, -746, INF, -INF, NAN])
    case("expm1", torch.expm1, [0.0, 1e-20, 710, -746, INF, -INF, NAN])
    case("tanh", torch.tanh, [0.0, 1e-20, 30, -746, INF, -INF, NAN])
    case("sigmoid", torch.sigmoid, [0.0, 40, -40, -746, 800, INF, -INF, NAN])
    case("silu", F.silu, [0.0, 40, -40, 800, -800, 1e300, -1e300])
    case("erf", torch.erf, [0.0, 1, -1, 6, 1e300, INF, -INF, NAN])
    halves = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999999999999994, INF, NAN, 4503599627370497.5]
    case("round", torch.round, halves)
    case("floor", torch.floor, halves)
    case("ceil", torch.ceil, halves)

    bases = [0.0, 0.0, 0.0, 0.0, 0.0, -0.0, -8, 2, 1, 1, NAN, NAN, -2, -2, INF]
    powers = [0.0, 1.0, 2.0, 0.5, -1.0, 3.0, 1 / 3, 0, NAN, INF, 0, 1, 2, 3, 0]
    case("pow", torch.pow, bases, powers)
    numerators = [5, -5, 5, -5, 5.5, 5, -5, NAN, 1, 0.0, -1.0]
    divisors = [3, 3, -3, -3, 0.1, INF, INF, 1, NAN, 0.0, 1e-30]
    case("rem", torch.remainder, numerators, divisors)
    case("div", torch.div, [1, 0, -1, INF, INF, NAN, 0], [0.0, 0.0, -0.0, INF, 0, 1, 5])
    case("clip", lambda x: torch.clamp(x, 0.0, 1.0), [0, 1, 2, -1, 0.5, INF, -INF])

    case("norm", lambda x: torch.linalg.vector_norm(x, dim=1), [[0, 0, 0], [3, 4, 0], [INF, 1, 0], [NAN, 1, 1]])
    case("var", lambda x: torch.var(x, 1, unbiased=False), [[2, 2, 2], [1, 2, 4], [NAN, 1, 1]])
    case("var_one", lambda x: torch.var(x, 1, unbiased=False), [[2], [1]])
    case("std", lambda x: torch.std(x, 1, unbiased=True), [[2, 2, 2], [1, 2, 4]])
    case("prod", lambda x: torch.prod(x, 1), [[0, 2, 3], [0, 0, 3], [1, 2, 3], [NAN, 0, 1]])
    rows = [[-INF, 1, -INF], [INF, 0, 1], [1e30, 1e30, 0], [NAN, 0, 1], [1e308, -1e308, 0], [-INF, 0, 1]]
    case("softmax", lambda x: F.softmax(x, 1)[:, 1], rows)
    case("log_softmax", lambda x: F.log_softmax(x, 1)[:, 1], rows)
    case("logsumexp", lambda x: torch.logsumexp(x, 1), [[-INF, 1, -INF], [INF, 0, 1], [INF, INF, 0], [NAN, 0, 1]])
    labels = torch.tensor([0, 1, 1, 1, 1, 1])
    rows = [[-INF, 0, 1], [0, 1, 2], [1e300, 0, 0], [-INF, 0, -INF], [INF, 0, 0], [NAN, 0, 0]]
    case("cross_entropy", lambda x: F.cross_entropy(x, labels, reduction="none"), rows)
    image = [[[[1, 1, 2, NAN], [1, 1, 2, 2], [-INF, -INF, 0, 0], [-INF, -INF, 0, -0.0]]]]
    case("max_pool", lambda x: F.max_pool2d(x, 2), image)
    case("max_pool_padded", lambda x: F.max_pool2d(x, 2, padding=1), [[[[-1, -2], [-3, -4]]]])

    case("bce_logits", F.binary_cross_entropy_with_logits, [0, 1, 800, -800, INF], [0, 1, 1, 1, 1])
    case("huber", F.huber_loss, [0, 1, 2, -1, 0.5], [0, 0, 0, 0, 0])
    case("l1", F.l1_loss, [0, 1, 2], [0, 0, 3])
    smoothed = torch.tensor([1, 0, 2])
    case("smooth", lambda x: F.cross_entropy(x, smoothed, label_smoothing=0.2), [[1.0, 2, 3], [30, 0, -30], [0, 0, 0]])

    plain = {key: value.detach().clone().contiguous() for key, value in OUT.items()}
    save_file(plain, "edges.safetensors")
    print(f"{len(plain)} tensors")


if __name__ == "__main__":
    main()
