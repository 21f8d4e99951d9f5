"""Random programs in f64: results, gradients and gradients of gradients, computed by JAX.

    pip install "jax[cpu]" safetensors numpy
    python3 make_random.py [FIRST COUNT]

Writes random.tg and random.safetensors. Each program takes tensors through a few operations to a scalar `loss`. It
gives the loss, the gradients, and the gradients of the gradients' product with random tensors. Without arguments,
the programs are those that are stored here; with them, others, to look for faults in.
"""

import random
import re
import sys

import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np
from jax import lax
from safetensors.numpy import save_file

# One operand: the name stands for x in both languages.
UNARY = [
    ("abs(x)", "magnitude(x)"),
    ("exp(x * 0.3)", "jnp.exp(x * 0.3)"),
    ("log(abs(x) + 0.5)", "jnp.log(magnitude(x) + 0.5)"),
    ("log1p(square(x))", "jnp.log1p(x * x)"),
    ("expm1(x * 0.3)", "jnp.expm1(x * 0.3)"),
    ("sqrt(square(x) + 0.1)", "jnp.sqrt(x * x + 0.1)"),
    ("rsqrt(square(x) + 0.2)", "lax.rsqrt(x * x + 0.2)"),
    ("recip(square(x) + 0.5)", "1 / (x * x + 0.5)"),
    ("sin(x)", "jnp.sin(x)"),
    ("cos(x)", "jnp.cos(x)"),
    ("tanh(x)", "jnp.tanh(x)"),
    ("sigmoid(x)", "jax.nn.sigmoid(x)"),
    ("relu(x)", "jnp.where(x > 0, x, 0.0)"),
    ("gelu(x)", "jax.nn.gelu(x)"),
    ("silu(x)", "jax.nn.silu(x)"),
    ("erf(x)", "jax.scipy.special.erf(x)"),
    ("round(x * 3.0) + x", "jnp.round(x * 3) + x"),
    ("sign(x) * x ** 2", "jnp.sign(x) * x * x"),
    ("x ** 3", "x * x * x"),
    ("(1.5 + tanh(x)) ** -2", "(1.5 + jnp.tanh(x)) ** -2.0"),
    ("(1.5 + tanh(x)) ** 2.5", "(1.5 + jnp.tanh(x)) ** 2.5"),
    ("clip(x, -0.5, 0.7)", "jnp.where(x < -0.5, -0.5, jnp.where(x > 0.7, 0.7, x))"),
    ("x * stop_grad(tanh(x))", "x * lax.stop_gradient(jnp.tanh(x))"),
    ("checkpoint < sin(x) * x >", "jnp.sin(x) * x"),
    ("checkpoint < { let h = tanh(x); let k = checkpoint < h * cos(x) >; k + h } >", "jnp.tanh(x) * (jnp.cos(x) + 1)"),
    ("barrier(x) * 0.9", "x * 0.9"),
]

# Two operands that broadcast.
BINARY = [
    ("x + y", "x + y"),
    ("x - y", "x - y"),
    ("x * y", "x * y"),
    ("x / (square(y) + 0.5)", "x / (y * y + 0.5)"),
    ("maximum(x, y)", "jnp.maximum(x, y)"),
    ("minimum(x, y)", "jnp.minimum(x, y)"),
    ("(1.5 + tanh(x)) ** tanh(y)", "(1.5 + jnp.tanh(x)) ** jnp.tanh(y)"),
    ("where(x > y, x * 2.0, y)", "jnp.where(x > y, x * 2, y)"),
    ("x % (abs(y) + 0.7)", "remainder(x, magnitude(y) + 0.7)"),
    ("x // (abs(y) + 0.7) + x", "lax.stop_gradient(jnp.floor_divide(x, magnitude(y) + 0.7)) + x"),
]

# Over axes, A in the second column.
REDUCTIONS = [
    ("sum(x, axis: A, keep: K)", "jnp.sum(x, A, keepdims=K)"),
    ("mean(x, axis: A, keep: K)", "jnp.mean(x, A, keepdims=K)"),
    ("max(x, axis: A, keep: K)", "jnp.max(x, A, keepdims=K)"),
    ("min(x, axis: A, keep: K)", "jnp.min(x, A, keepdims=K)"),
    ("prod(tanh(x) + 1.2, axis: A, keep: K)", "jnp.prod(jnp.tanh(x) + 1.2, A, keepdims=K)"),
    ("var(x, axis: A, keep: K)", "jnp.var(x, A, keepdims=K)"),
    ("std(x, axis: A, keep: K)", "root(jnp.var(x, A, keepdims=K))"),
    ("norm(x, axis: A, keep: K)", "root(jnp.sum(x * x, A, keepdims=K))"),
    ("logsumexp(x, axis: A, keep: K)", "jax.scipy.special.logsumexp(x, A, keepdims=K)"),
]


def magnitude(x):
    """|x| with slope 0 at 0."""
    return jnp.where(x > 0, x, jnp.where(x < 0, -x, 0 * x))


def remainder(x, d):
    return x - lax.stop_gradient(jnp.floor(x / d)) * d


def root(x):
    """√x with slope 0 at 0."""
    zero = x == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, x)))


def layer_norm(x, w):
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5) * w


def attention(q, k, causal):
    scores = q @ jnp.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    t, s = scores.shape[-2:]
    if causal:
        scores = jnp.where(jnp.arange(s)[None] <= jnp.arange(t)[:, None] + (s - t), scores, -jnp.inf)
    return jax.nn.softmax(scores) @ k


def convolution(x, w, stride, padding, dilation, groups):
    pad = [(p, p) for p in padding]
    return lax.conv_general_dilated(x, w, stride, pad, rhs_dilation=dilation, feature_group_count=groups)


class Program:
    """Lines of the same program in both languages."""

    def __init__(self, seed):
        self.seed, self.dice, self.rng = seed, random.Random(seed), np.random.default_rng(seed)
        self.lines, self.jax_lines, self.operands, self.values = [], [], {}, []
        for _ in range(self.dice.randint(2, 3)):
            shape = [self.dice.randint(1, 5) for _ in range(self.dice.randint(1, 3))]
            self.values.append((self.operand(shape), tuple(shape)))
        wanted = self.dice.randint(3, 9)
        while len(self.lines) < wanted:
            self.grow()

    def operand(self, shape):
        name = f"a{len(self.operands)}"
        self.operands[name] = self.rng.standard_normal(shape)
        return name

    def let(self, text, jax_text, shape, **names):
        """One more value; `names` are put in for letters that stand alone."""
        for letter, name in names.items():
            text, jax_text = replace(text, letter, name), replace(jax_text, letter, name)
        name = f"v{len(self.lines)}"
        self.lines.append(f"let {name} = {text}")
        self.jax_lines.append(f"{name} = {jax_text}")
        self.values.append((name, tuple(int(size) for size in shape)))

    def grow(self):
        """Tries to add a value; where the operands that were drawn do not fit, there is none."""
        dice = self.dice
        x, shape = dice.choice(self.values[-4:])
        kind = dice.choices([self.unary, self.binary, self.reduction, self.movement, self.product, self.network], [7, 5, 4, 5, 2, 4])
        kind[0](x, shape)

    def unary(self, x, shape):
        self.let(*self.dice.choice(UNARY), shape, x=x)

    def binary(self, x, shape):
        y, other = self.dice.choice(self.values)
        try:
            result = np.broadcast_shapes(shape, other)
        except ValueError:
            return
        if np.prod(result) < 200:
            self.let(*self.dice.choice(BINARY), result, x=x, y=y)

    def reduction(self, x, shape):
        if not shape:
            return
        axes = sorted(self.dice.sample(range(len(shape)), self.dice.randint(1, len(shape))))
        keep = self.dice.random() < 0.4
        # Of one element, the variance and its slope are 0, and little is left to compare.
        if np.prod([shape[a] for a in axes]) < 2:
            return
        text, jax_text = self.dice.choice(REDUCTIONS)
        left = [1 if k in axes else size for k, size in enumerate(shape) if keep or k not in axes]
        text = replace(replace(text, "A", str(axes)), "K", "true" if keep else "false")
        jax_text = replace(replace(jax_text, "A", str(tuple(axes))), "K", str(keep))
        self.let(text, jax_text, left, x=x)

    def movement(self, x, shape):
        dice, rank, size = self.dice, len(shape), int(np.prod(shape))
        what = dice.choice(["reshape", "transpose", "broadcast", "concat", "stack", "slice", "pad", "take"])
        if what == "reshape":
            first = dice.choice([d for d in range(1, size + 1) if size % d == 0])
            self.let(f"reshape(x, [{first}, -1])", f"x.reshape({first}, -1)", (first, size // first), x=x)
        elif what == "transpose" and rank > 1:
            order = dice.sample(range(rank), rank)
            self.let(f"transpose(x, {order})", f"x.transpose({order})", [shape[k] for k in order], x=x)
        elif what == "broadcast" and size < 60:
            wide = (2, *shape)
            self.let(f"broadcast(x, {list(wide)})", f"jnp.broadcast_to(x, {wide})", wide, x=x)
        elif what in ("concat", "stack") and rank and size < 60:
            y = dice.choice([name for name, other in self.values if other == shape])
            axis = dice.randrange(rank)
            if what == "concat":
                longer = [2 * s if k == axis else s for k, s in enumerate(shape)]
                self.let(f"concat([x, y], axis: {axis})", f"jnp.concatenate([x, y], {axis})", longer, x=x, y=y)
            else:
                more = shape[:axis] + (3,) + shape[axis:]
                self.let(f"stack([x, y, x], axis: {axis})", f"jnp.stack([x, y, x], {axis})", more, x=x, y=y)
        elif what == "slice" and rank:
            low, step = dice.randrange(shape[0]), dice.randint(1, 2)
            high = dice.randint(low + 1, shape[0])
            part = (len(range(low, high, step)), *shape[1:])
            self.let(f"x[{low}..{high}..{step}]", f"x[{low}:{high}:{step}]", part, x=x)
        elif what == "pad" and rank and size < 60:
            before, after = ([dice.randint(0, 2) for _ in shape] for _ in range(2))
            wide = [s + b + a for s, b, a in zip(shape, before, after)]
            pairs = list(zip(before, after))
            self.let(f"pad(x, {before}, {after}, value: 0.3)", f"jnp.pad(x, {pairs}, constant_values=0.3)", wide, x=x)
        elif what == "take" and rank:
            axis = dice.randrange(rank)
            ids = [dice.randrange(shape[axis]) for _ in range(dice.randint(1, 4))]
            rows = shape[:axis] + (len(ids),) + shape[axis + 1 :]
            self.let(f"take(x, tensor({ids}), {axis})", f"jnp.take(x, jnp.array({ids}), {axis})", rows, x=x)

    def product(self, x, shape):
        for y, other in self.dice.sample(self.values, len(self.values)):
            for text, flipped in [("x @ y", other), ("x @ y.T", other[:-2] + other[:-3:-1])]:
                if not shape or not other or (text.endswith("T") and len(other) < 2):
                    continue
                try:
                    result = np.matmul(np.zeros(shape), np.zeros(flipped)).shape
                except ValueError:
                    continue
                if np.prod(result) < 200:
                    self.let(text, text.replace("y.T", "jnp.swapaxes(y, -1, -2)"), result, x=x, y=y)
                    return

    def network(self, x, shape):
        dice, rank, size = self.dice, len(shape), int(np.prod(shape))
        rows, images = ["softmax", "log_softmax", "layer_norm", "cross_entropy", "attention"], ["conv", "max_pool"]
        what = dice.choice(images if size >= 16 and dice.random() < 0.5 else rows)
        if what in ("softmax", "log_softmax") and rank:
            axis = dice.randrange(rank)
            self.let(f"{what}(x, axis: {axis})", f"jax.nn.{what}(x, {axis})", shape, x=x)
        elif what == "layer_norm" and rank and shape[-1] > 2:
            w = self.operand(shape[-1:])
            self.let("layer_norm(x, w)", "layer_norm(x, w)", shape, x=x, w=w)
        elif what == "cross_entropy" and rank == 2:
            labels = [dice.randrange(shape[1]) for _ in range(shape[0])]
            picked = f"-jax.nn.log_softmax(x)[jnp.arange({shape[0]}), jnp.array({labels})]"
            self.let(f"cross_entropy(x, tensor({labels}))", picked, shape[:1], x=x)
        elif what == "attention" and rank > 1:
            alike = [name for name, other in self.values if other[:-2] == shape[:-2] and other[-1:] == shape[-1:] and len(other) == rank]
            y, causal = dice.choice(alike), dice.random() < 0.5
            self.let(f"attention(x, y, y, causal: {str(causal).lower()})", f"attention(x, y, {causal})", shape, x=x, y=y)
        elif what in images:
            self.image(what, x, size)

    def image(self, what, x, size):
        dice = self.dice
        height = dice.choice([d for d in range(2, 9) if size % d == 0] or [1])
        channels = dice.choice([d for d in (1, 2, 4) if size // height % d == 0])
        width = size // height // channels
        text, jax_text = f"reshape(x, [1, {channels}, {height}, {width}])", f"x.reshape(1, {channels}, {height}, {width})"
        kernel, stride, padding = ([dice.randint(low, high) for _ in range(2)] for low, high in [(1, 3), (1, 2), (0, 1)])
        dilation = [dice.randint(1, 2) for _ in range(2)] if what == "conv" else [1, 1]
        padding = [min(p, k // 2) for p, k in zip(padding, kernel)]
        out = [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, p, d, k, t in zip((height, width), padding, dilation, kernel, stride)]
        if min(out) < 1:
            return
        if what == "max_pool":
            window = f"lax.reduce_window({jax_text}, -jnp.inf, lax.max, (1, 1, {kernel[0]}, {kernel[1]}), (1, 1, {stride[0]}, {stride[1]}), {[(0, 0), (0, 0)] + [(p, p) for p in padding]})"
            self.let(f"max_pool2d({text}, {kernel}, stride: {stride}, padding: {padding})", window, (1, channels, *out), x=x)
            return
        groups = dice.choice([d for d in (1, 2, 4) if channels % d == 0])
        outputs = groups * dice.randint(1, 2)
        w = self.operand((outputs, channels // groups, *kernel))
        self.let(
            f"conv2d({text}, w, stride: {stride}, padding: {padding}, dilation: {dilation}, groups: {groups})",
            f"convolution({jax_text}, w, {stride}, {padding}, {dilation}, {groups})",
            (1, outputs, *out),
            x=x,
            w=w,
        )

    def finish(self, out):
        """The text of the program; its operands and what JAX makes of them go to `out`."""
        names, (last, shape) = list(self.operands), self.values[-1]
        extra = {"w": self.rng.standard_normal(shape)}
        extra |= {f"u_{name}": self.rng.standard_normal(x.shape) for name, x in self.operands.items()}
        everything = [*self.operands.values(), *extra.values()]
        params = ", ".join([*names, *extra])

        # Each operand has a gradient, and one that is not constant.
        cubes = " + ".join(f"0.01 * sum({name} ** 3)" for name in names)
        listed = ", ".join(names)
        returned = ", ".join(f"{letter}[{k}]" for letter in "gh" for k in range(len(names)))
        products = " + ".join(f"sum(g[{k}] * u_{name})" for k, name in enumerate(names))
        body = [*self.lines, f"let loss = sum({last} * w) + {cubes}", f"let g = grad(loss, [{listed}])"]
        body += [f"let h = grad({products}, [{listed}])", f"return loss, {returned}"]
        text = f"step p{self.seed}({params}) {{\n  " + "\n  ".join(body) + "\n}\n"

        scope = dict(globals())
        lines = [*self.jax_lines, f"return jnp.sum({last} * w) + " + cubes.replace("sum", "jnp.sum")]
        exec(f"def loss({params}):\n  " + "\n  ".join(lines), scope)
        loss, places = scope["loss"], tuple(range(len(names)))

        def product(*operands):
            grads = jax.grad(loss, places)(*operands)
            return sum(jnp.sum(g * u) for g, u in zip(grads, operands[len(names) + 1 :]))

        def results(*operands):
            return [loss(*operands), *jax.grad(loss, places)(*operands), *jax.grad(product, places)(*operands)]

        results = jax.jit(results)(*everything)
        for name, x in zip([*names, *extra], everything):
            out[f"p{self.seed}_{name}"] = x
        kinds = ["loss"] + [f"{letter}_{name}" for letter in "gh" for name in names]
        given = ", ".join(f'gold["p{self.seed}_{name}"]' for name in [*names, *extra])
        text += f"let {', '.join(f'r{k}' for k in range(len(kinds)))} = p{self.seed}({given})\n"
        for k, (kind, result) in enumerate(zip(kinds, results)):
            out[f"p{self.seed}_{kind}"] = np.asarray(result)
            text += f'results += [("p{self.seed} {kind}", r{k}, gold["p{self.seed}_{kind}"])]\n'
        return text


def replace(text, letter, name):
    """`name` for `letter` where it is a word of its own."""
    return re.sub(rf"(?<![\w.]){letter}(?!\w|:)", name, text)


HEAD = """# Made by make_random.py: random programs with their gradients and the gradients of those, against JAX.
const TOLERANCE = 1e-10

let gold = data.load("random.safetensors")

# (name, what was computed, what JAX computed)
let results = []

"""

TAIL = """
for name, ours, expected in results {
  assert(ours.shape == expected.shape, "{name}: shape {ours.shape}, expected {expected.shape}")
  let off = float(max(abs(ours - expected)))
  let size = max([float(max(abs(expected))), 1e-3])
  assert(off <= TOLERANCE * size, "{name} is off by {off}, of {size}")
}
print("{len(results)} results of random programs agree with the reference")
"""


def main():
    first, count = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (932, 18)
    out = {}
    text = HEAD + "\n".join(Program(seed).finish(out) for seed in range(first, first + count)) + TAIL
    with open("random.tg", "w") as file:
        file.write(text)
    save_file({key: np.array(value, order="C") for key, value in out.items()}, "random.safetensors")
    print(f"{len(out)} tensors")


if __name__ == "__main__":
    main()
