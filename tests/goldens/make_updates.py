"""Fifty updates by every optimizer and schedule of the library in f64, and layers over several steps.

    pip install torch safetensors numpy
    python3 make_updates.py

Writes updates.safetensors for updates.tg, and layers.safetensors, layers.init.safetensors for layers.tg: recurrent
cells over a sequence, batch norm in training and after it, attention with several heads. All of it is computed by
PyTorch, except Lion, which it does not have.
"""

import math

import torch
from safetensors.torch import save_file

STEPS = 50
torch.manual_seed(11)
torch.set_default_dtype(torch.float64)


def numbers(*shape):
    return torch.randn(*shape)


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = torch.sign(beta1 * m + (1 - beta1) * p.grad) + group["weight_decay"] * p
                p -= group["lr"] * update
                m.mul_(beta2).add_((1 - beta2) * p.grad)


def cosine(t, warmup, floor):
    fraction = min(max((t - warmup) / (40 - warmup), 0), 1)
    rise = min(t / warmup, 1) if warmup else 1
    return (floor + 0.5 * (0.1 - floor) * (1 + math.cos(math.pi * fraction))) * rise


def linear(t):
    fraction = min(max((t - 10) / 30, 0), 1)
    return (0.1 + (0.01 - 0.1) * fraction) * min(t / 10, 1)


def updates():
    data = {"w": numbers(4, 3), "b": numbers(4), "x": numbers(STEPS, 5, 3), "y": numbers(STEPS, 5, 4)}
    out = dict(data)

    def run(name, make, clip=None, rate=None):
        w, b = data["w"].clone().requires_grad_(), data["b"].clone().requires_grad_()
        optimizer = make([w, b])
        for k in range(STEPS):
            if rate:
                optimizer.param_groups[0]["lr"] = rate(k + 1)
            optimizer.zero_grad()
            ((torch.tanh(data["x"][k] @ w.T + b) - data["y"][k]) ** 2).mean().backward()
            if clip:
                torch.nn.utils.clip_grad_norm_([w, b], clip)
            optimizer.step()
        out[f"{name}_w"], out[f"{name}_b"] = w.detach(), b.detach()

    optim = torch.optim
    run("sgd", lambda p: optim.SGD(p, 0.05))
    run("sgd_decay", lambda p: optim.SGD(p, 0.05, weight_decay=0.1))
    run("sgd_nesterov", lambda p: optim.SGD(p, 0.05, momentum=0.8, weight_decay=0.1, nesterov=True))
    run("sgd_clipped", lambda p: optim.SGD(p, 0.5, momentum=0.9), clip=0.3)
    run("adam", lambda p: optim.Adam(p, 0.01))
    run("adam_decay", lambda p: optim.Adam(p, 0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1))
    run("adamw", lambda p: optim.AdamW(p, 0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3))
    run("lion", lambda p: Lion(p, 0.01))
    run("lion_decay", lambda p: Lion(p, 0.01, betas=(0.95, 0.98), weight_decay=0.2))
    run("warmup", lambda p: optim.SGD(p, 0.1), rate=lambda t: 0.1 * min(t / 10, 1))
    run("cosine", lambda p: optim.SGD(p, 0.1), rate=lambda t: cosine(t, 0, 0.0))
    run("cosine_warm", lambda p: optim.SGD(p, 0.1), rate=lambda t: cosine(t, 10, 0.01))
    run("linear", lambda p: optim.SGD(p, 0.1), rate=linear)
    run("step_decay", lambda p: optim.SGD(p, 0.1), rate=lambda t: 0.1 * 0.5 ** ((t - 1) // 7))
    save_file({k: v.contiguous() for k, v in out.items()}, "updates.safetensors")


def layers():
    out, init = {}, {}
    x, g = numbers(9, 2, 3), numbers(9, 2, 4)
    out["x"], out["g"] = x, g
    theirs = {"weight_ih_l0": "w_ih", "weight_hh_l0": "w_hh", "bias_ih_l0": "b_ih", "bias_hh_l0": "b_hh"}
    for name, cell in [("rnn", torch.nn.RNN), ("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)]:
        module = cell(3, 4)
        operand = x.clone().requires_grad_()
        y, _ = module(operand)
        (y * g).sum().backward()
        out[f"{name}_y"], out[f"{name}_dx"] = y.detach(), operand.grad
        for key, value in module.named_parameters():
            init[f"{name}.{theirs[key]}"] = value.detach()
            out[f"{name}_d_{theirs[key]}"] = value.grad

    norm = torch.nn.BatchNorm2d(3, momentum=0.3)
    with torch.no_grad():
        norm.weight.copy_(numbers(3))
        norm.bias.copy_(numbers(3))
    init["norm.w"], init["norm.b"] = norm.weight.detach().clone(), norm.bias.detach().clone()
    init["norm.running_mean"], init["norm.running_var"] = torch.zeros(3), torch.ones(3)
    images = numbers(5, 4, 3, 2, 3)
    out["images"] = images
    for k in range(5):
        operand = images[k].clone().requires_grad_()
        y = norm(operand)
        norm.zero_grad()
        (y**3).sum().backward()
    out["norm_y"], out["norm_dx"], out["norm_dw"] = y.detach(), operand.grad, norm.weight.grad.clone()
    out["norm_mean"], out["norm_var"] = norm.running_mean.clone(), norm.running_var.clone()
    norm.eval()
    norm.zero_grad()
    operand = images[0].clone().requires_grad_()
    y = norm(operand)
    (y**3).sum().backward()
    out["norm_eval_y"], out["norm_eval_dx"], out["norm_eval_dw"] = y.detach(), operand.grad, norm.weight.grad.clone()

    heads = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        heads.in_proj_bias.copy_(numbers(24))
        heads.out_proj.bias.copy_(numbers(8))
    for k, letter in enumerate("qkv"):
        for causal in ["heads", "causal"]:
            init[f"{causal}.{letter}.w"] = heads.in_proj_weight.detach()[8 * k : 8 * k + 8].clone()
            init[f"{causal}.{letter}.b"] = heads.in_proj_bias.detach()[8 * k : 8 * k + 8].clone()
    for name, mask in [("heads", None), ("causal", torch.triu(torch.ones(5, 5, dtype=torch.bool), 1))]:
        init[f"{name}.out.w"] = heads.out_proj.weight.detach().clone()
        init[f"{name}.out.b"] = heads.out_proj.bias.detach().clone()
        operand = out["tokens"] = numbers(2, 5, 8) if name == "heads" else out["tokens"]
        operand = operand.clone().requires_grad_()
        heads.zero_grad()
        y, _ = heads(operand, operand, operand, attn_mask=mask, need_weights=False)
        (y**3).sum().backward()
        out[f"{name}_y"], out[f"{name}_dx"] = y.detach(), operand.grad
        out[f"{name}_d_k"] = heads.in_proj_weight.grad[8:16].clone()
        out[f"{name}_d_out"] = heads.out_proj.weight.grad.clone()

    save_file({k: v.contiguous() for k, v in out.items()}, "layers.safetensors")
    save_file({k: v.contiguous() for k, v in init.items()}, "layers.init.safetensors")


if __name__ == "__main__":
    updates()
    layers()
