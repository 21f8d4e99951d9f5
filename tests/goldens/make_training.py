"""Trains three small networks in PyTorch and writes what `tg` must reproduce.

    pip install torch safetensors numpy
    python3 make_training.py

For each NAME (mlp, convnet, gpt) and each DTYPE (f32, f64):

    NAME.data.safetensors          the batches of all 20 steps
    NAME.DTYPE.init.safetensors    the parameters before the first step, by their names in NAME.tg
    NAME.DTYPE.VARIANT.final.safetensors   parameters (and running statistics) after 20 steps,
                                   and `losses`, the loss of each step

Each NAME.tg beside this script is the same program in `tg`.
"""

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

STEPS = 20


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 24)
        self.fc2 = nn.Linear(24, 24)
        self.fc3 = nn.Linear(24, 5)

    def forward(self, x):
        return self.fc3(torch.tanh(self.fc2(torch.relu(self.fc1(x)))))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        h = torch.relu(self.norm1(self.conv1(x)))
        h = F.max_pool2d(h, 2)
        h = torch.relu(self.norm2(self.conv2(h)))
        return self.fc(h.mean(dim=(2, 3)))


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (
            layer(x).view(n, t, self.heads, d // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, t, d))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.attn = Attention(d, heads)
        self.norm2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        h = x + self.attn(self.norm1(x))
        return h + self.down(F.gelu(self.up(self.norm2(h)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, d, heads, layers):
        super().__init__()
        self.token = nn.Parameter(0.1 * torch.randn(vocabulary, d))
        self.position = nn.Parameter(0.1 * torch.randn(context, d))
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, ids):
        h = self.token[ids] + self.position[: ids.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.token.T


def tg_name(name):
    """`fc1.weight` here is `net.fc1.w` there."""
    for ours, theirs in ((".weight", ".w"), (".bias", ".b")):
        if name.endswith(ours):
            name = name[: -len(ours)] + theirs
    return "net." + name


def tensors(net):
    return {
        tg_name(name): value.detach().clone().contiguous()
        for name, value in net.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def make(name, net, inputs, labels, optimizers):
    """`optimizers` maps the name of a variant to (its factory, norm to clip to or None)."""
    data = {"y": labels}
    data["x"] = inputs if not inputs.is_floating_point() else inputs.to(torch.float32)
    save_file(data, f"{name}.data.safetensors")
    start = {key: value.clone() for key, value in net.to(torch.float32).state_dict().items()}
    for dtype, label in ((torch.float32, "f32"), (torch.float64, "f64")):
        for variant, (optimizer, clip) in optimizers.items():
            net.to(dtype)
            net.load_state_dict(start)
            net.train()
            save_file(tensors(net), f"{name}.{label}.init.safetensors")
            steps = optimizer(net.parameters())
            losses = []
            for step in range(STEPS):
                x = data["x"][step]
                x = x.to(dtype) if x.is_floating_point() else x.long()
                scores = net(x)
                loss = F.cross_entropy(scores.flatten(0, -2), data["y"][step].long().flatten())
                steps.zero_grad()
                loss.backward()
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                steps.step()
                losses.append(loss.item())
            result = tensors(net)
            result["losses"] = torch.tensor(losses, dtype=torch.float64)
            save_file(result, f"{name}.{label}.{variant}.final.safetensors")
            print(f"{name} {label} {variant}: loss {losses[0]:.6f} -> {losses[-1]:.6f}")


def main():
    torch.manual_seed(20)
    rng = np.random.default_rng(20)

    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape))

    def whole(high, *shape):
        return torch.from_numpy(rng.integers(0, high, shape, dtype=np.int32))

    make("mlp", Mlp(), numbers(STEPS, 16, 12), whole(5, STEPS, 16), {
        "sgd": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3), None),
        "nesterov": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True), None),
        "adam": (lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.9, 0.99), weight_decay=1e-2), None),
    })
    make("convnet", ConvNet(), numbers(STEPS, 12, 2, 8, 8), whole(5, STEPS, 12), {
        "sgd": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), None),
    })
    ids = whole(20, STEPS, 4, 17)
    make("gpt", Gpt(20, 16, 32, 4, 2), ids[:, :, :-1].contiguous(), ids[:, :, 1:].contiguous(), {
        "adamw": (lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.1), 1.0),
        "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), None),
    })


if __name__ == "__main__":
    main()
