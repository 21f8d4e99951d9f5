"""Times steps in PyTorch, of the transformer of `gpt.tg` or of the network of `convnet.tg`:
`torch_steps.py [--convolutions] [--compile] NAME=VALUE…`.

Prints milliseconds a step, the peak of allocated memory in MiB, and the launches of one step.
"""

import sys
import time

import torch
import torch.nn.functional as F

convolutions = "--convolutions" in sys.argv
if convolutions:
    size = {"C": 64, "BLOCKS": 2, "CLASSES": 1000, "BATCH": 128, "SIZE": 224, "STEPS": 20}
else:
    size = {"LAYERS": 12, "D": 1024, "HEADS": 16, "CONTEXT": 1024, "BATCH": 16, "VOCABULARY": 32768, "STEPS": 20}
for word in sys.argv[1:]:
    if "=" in word:
        name, value = word.split("=")
        size[name] = int(value)
D, HEADS = size.get("D"), size.get("HEADS")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(D, D) for _ in range(4))
        self.up, self.down = torch.nn.Linear(D, 4 * D), torch.nn.Linear(4 * D, D)

    def forward(self, x):
        n, t, _ = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(n, t, HEADS, D // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(n, t, D))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.token = torch.nn.Parameter(torch.randn(size["VOCABULARY"], D) * 0.02)
        self.position = torch.nn.Parameter(torch.randn(size["CONTEXT"], D) * 0.02)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(size["LAYERS"]))
        self.norm = torch.nn.LayerNorm(D)

    def forward(self, ids):
        h = F.embedding(ids, self.token) + self.position[: ids.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.token.T


def layer(c_in, c_out, kernel, stride):
    conv = torch.nn.Conv2d(c_in, c_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    return torch.nn.Sequential(conv, torch.nn.BatchNorm2d(c_out))


class Residual(torch.nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.layer1, self.layer2 = layer(c_in, c_out, 3, stride), layer(c_out, c_out, 3, 1)
        self.shortcut = layer(c_in, c_out, 1, stride) if c_in != c_out else torch.nn.Identity()

    def forward(self, x):
        return F.relu(self.layer2(F.relu(self.layer1(x))) + self.shortcut(x))


class ConvNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        c = size["C"]
        self.stem = layer(3, c, 7, 2)
        blocks, width = [], c
        for stage in range(4):
            for block in range(size["BLOCKS"]):
                blocks.append(Residual(width, c << stage, 2 if stage > 0 and block == 0 else 1))
                width = c << stage
        self.blocks = torch.nn.Sequential(*blocks)
        self.head = torch.nn.Linear(width, size["CLASSES"])

    def forward(self, x):
        h = F.max_pool2d(F.relu(self.stem(x)), 3, stride=2, padding=1)
        return self.head(self.blocks(h).mean((2, 3)))


device = "cuda" if torch.cuda.is_available() else "cpu"
if convolutions:
    net = ConvNet().to(device, torch.bfloat16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    x = torch.randn(size["BATCH"], 3, size["SIZE"], size["SIZE"], device=device, dtype=torch.bfloat16)
    y = torch.randint(size["CLASSES"], (size["BATCH"],), device=device)
    classes = size["CLASSES"]
else:
    net = Gpt().to(device, torch.bfloat16)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.1)
    tokens = torch.randint(size["VOCABULARY"], (size["BATCH"], size["CONTEXT"] + 1), device=device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    classes = size["VOCABULARY"]
forward = torch.compile(net) if "--compile" in sys.argv else net


def step():
    loss = F.cross_entropy(forward(x).view(-1, classes), y.reshape(-1))
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    return loss.item()


for _ in range(3):
    step()
start = time.perf_counter()
for _ in range(size["STEPS"]):
    step()
elapsed = (time.perf_counter() - start) / size["STEPS"] * 1e3
launches = "-"
if device == "cuda":
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
    launches = sum(1 for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA)
peak = torch.cuda.max_memory_allocated() >> 20 if device == "cuda" else 0
print(f"ms {elapsed:.2f} peak_mib {peak} launches {launches}")
