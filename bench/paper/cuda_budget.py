#!/usr/bin/env python3
"""What a GPT-2 training step must at least cost on a GPU, op by op, and what it is expected to cost.

Arithmetic, nothing is measured. An op's floor is the longer of its FLOPs at the device's peak and its
bytes at the device's bandwidth; what is expected of it are those times over the shares that such kernels
are known to reach (SHARES). bf16 activations and products, fp32 weights and gradients, no dropout,
nothing recomputed: the ops of worker/layers/gpt2_block.cc and head.cc as worker/backend/cuda runs them.

    bench/paper/cuda_budget.py            # the tables of docs/performance.md
    bench/paper/cuda_budget.py --ops 124M H100
"""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    name: str
    flops: float  # dense bf16 with fp32 sums
    bytes: float  # of memory, a second


@dataclass(frozen=True)
class Model:
    name: str
    layers: int
    width: int
    heads: int
    sequences: int  # of a micro-batch
    length: int = 1024
    vocabulary: int = 50257

    @property
    def tokens(self):
        return self.sequences * self.length

    @property
    def parameters(self):
        d = self.width
        return self.layers * (12 * d * d + 13 * d) + (self.vocabulary + self.length + 2) * d

    def flops_per_token(self):
        """As docs/performance.md counts them: all of attention's square, though half is computed."""
        matrices = 12 * self.layers * self.width**2 + self.vocabulary * self.width
        return 6 * matrices + 12 * self.layers * self.length * self.width


@dataclass(frozen=True)
class Op:
    name: str
    kind: str  # of SHARES
    flops: float
    bytes: float
    launches: int = 1


DEVICES = (
    Device("H100 SXM", 989e12, 3.35e12),
    Device("H200", 989e12, 4.8e12),
    Device("A100 80GB", 312e12, 2.04e12),
    Device("RTX 4090", 165e12, 1.01e12),
)
MODELS = (Model("124M", 12, 768, 12, 16), Model("350M", 24, 1024, 16, 16), Model("1.5B", 48, 1600, 25, 8))
STEP_TOKENS = 1 << 19  # of a mini-batch: what the optimizer's time is shared by
LAUNCH_S = 2.5e-6  # the host's, hidden as long as a kernel takes longer
HEAD_ROWS = 2048  # of logits at a time

# Shares of peak: cuBLASLt at these shapes; FlashAttention-2 by mma.sync, forward and backward (on the
# H100, whose peak needs wgmma, about half as much of it); shares of bandwidth for the rest.
SHARES = {"product": 0.70, "attention": 0.60, "memory": 0.85}
HOPPER_ATTENTION = 0.33


def block_ops(m):
    n, d = m.tokens, m.width
    h = 2 * n * d  # bytes of one [tokens, width] in bf16
    triangle = n * m.length * d  # FLOPs of one of attention's products under its mask

    def product(name, inputs, outputs, more=0):
        """Widths in and out, and of what the epilogue reads or writes beside them, in widths of the model."""
        matrix = d * d * inputs * outputs
        return Op(name, "product", 2 * n * matrix, h * (inputs + outputs + more) + 2 * matrix)

    def weight(name, inputs, outputs):
        matrix = d * d * inputs * outputs
        return (
            Op(name + " dW", "product", 2 * n * matrix, h * (inputs + outputs) + 8 * matrix),
            Op(name + " dbias", "memory", n * d * outputs, h * outputs, 2),
        )

    norm_backward = Op("norm backward, residual added", "memory", 16 * n * d, 6 * h, 3)
    return (
        Op("norm", "memory", 8 * n * d, 2 * h),
        product("q, k, v", 1, 3),
        Op("attention", "attention", 2 * triangle, 4 * h),
        product("projection + residual", 1, 1, 1),
        Op("norm", "memory", 8 * n * d, 2 * h),
        product("expand, GELU", 1, 4, 4),
        product("contract + residual", 4, 1, 1),
        # backward
        Op("GELU again", "memory", 16 * 4 * n * d, 8 * h),
        *weight("contract", 4, 1),
        product("contract dX, GELU'", 1, 4, 4),
        *weight("expand", 1, 4),
        product("expand dX", 4, 1),
        norm_backward,
        *weight("projection", 1, 1),
        product("projection dX", 1, 1),
        Op("attention backward", "attention", 7 * triangle, 13 * h, 3),
        *weight("q, k, v", 1, 3),
        product("q, k, v dX", 3, 1),
        norm_backward,
    )


def end_ops(m):
    n, d, v = m.tokens, m.width, m.vocabulary
    h, logits, matrix = 2 * n * d, 2 * n * v, v * d
    blocks = -(-n // HEAD_ROWS)
    return (
        Op("embedding", "memory", n * d, 4 * n * d + h),
        Op("embedding backward", "memory", n * d, h + 8 * min(n, v) * d, 2),
        Op("last norm, forward and backward", "memory", 24 * n * d, 7 * h, 4 * blocks),
        Op("logits", "product", 2 * n * matrix, h + logits + 2 * matrix * blocks, blocks),
        Op("cross-entropy", "memory", 10 * n * v, 2 * logits, 2 * blocks),
        Op("head dW", "product", 2 * n * matrix, h + logits + 8 * matrix * blocks, blocks),
        Op("head dX", "product", 2 * n * matrix, h + logits + 2 * matrix * blocks, blocks),
    )


def step_ops(m):
    """Once a step: zero, norm, AdamW with its bf16 copy of the weights."""
    p = m.parameters
    return (
        Op("zero gradients", "memory", 0, 4 * p),
        Op("gradient norm", "memory", 2 * p, 4 * p),
        Op("AdamW", "memory", 15 * p, (7 * 4 + 2) * p),
    )


def share(op, device):
    if op.kind == "attention" and device.name.startswith("H"):
        return HOPPER_ATTENTION
    return SHARES[op.kind]


def floor(op, device):
    return max(op.flops / device.flops if op.kind != "memory" else 0, op.bytes / device.bytes)


def expected(op, device):
    compute = op.flops / device.flops / share(op, device) if op.kind != "memory" else 0
    return max(compute, op.bytes / device.bytes / SHARES["memory"], LAUNCH_S * op.launches)


def bound(op, device):
    by_compute = op.kind != "memory" and op.flops / device.flops >= op.bytes / device.bytes
    return "tensor cores" if by_compute else "memory"


def seconds(model, device, cost):
    """Of a micro-batch, with its share of the step's end."""
    once = sum(cost(op, device) for op in step_ops(model)) * model.tokens / STEP_TOKENS
    blocks = sum(cost(op, device) for op in block_ops(model)) * model.layers
    return blocks + sum(cost(op, device) for op in end_ops(model)) + once


def launches(model):
    blocks = sum(op.launches for op in block_ops(model)) * model.layers
    return blocks + sum(op.launches for op in end_ops(model))


def print_summary():
    print("| model, micro-batch | launches | " + " | ".join(d.name for d in DEVICES) + " |")
    print("|---|---|" + "---|" * len(DEVICES))
    for m in MODELS:
        cells = []
        for d in DEVICES:
            flops = m.flops_per_token() * m.tokens
            least, likely = seconds(m, d, floor), seconds(m, d, expected)
            cells.append(
                f"{least * 1e3:.1f}, {likely * 1e3:.1f} ms; {flops / likely / d.flops:.0%}; "
                f"{m.tokens / likely / 1e3:.0f}k"
            )
        print(f"| {m.name}, {m.sequences} × {m.length} | {launches(m)} | " + " | ".join(cells) + " |")


def print_ops(model, device):
    total = seconds(model, device, expected)
    print(f"| {model.name} on {device.name} | GFLOP | MB | floor µs | bound by | expected µs | share |")
    print("|---|---|---|---|---|---|---|")
    rows = [(f"{op.name}", op, model.layers) for op in block_ops(model)]
    rows += [(op.name, op, 1) for op in end_ops(model)]
    rows += [(op.name + ", once a step", op, model.tokens / STEP_TOKENS) for op in step_ops(model)]
    for name, op, times in rows:
        times_text = f" (× {times})" if times == model.layers else ""
        print(
            f"| {name}{times_text} | {op.flops / 1e9:.1f} | {op.bytes / 1e6:.0f} | "
            f"{floor(op, device) * 1e6:.0f} | {bound(op, device)} | {expected(op, device) * 1e6:.0f} | "
            f"{expected(op, device) * times / total:.1%} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs=2, metavar=("MODEL", "DEVICE"), help="one model's ops on one device")
    options = parser.parse_args()
    if not options.ops:
        print_summary()
        return
    model = [m for m in MODELS if m.name == options.ops[0]]
    device = [d for d in DEVICES if d.name.startswith(options.ops[1])]
    if not model or not device:
        parser.error(
            "MODEL is one of " + ", ".join(m.name for m in MODELS) + ", DEVICE begins one of "
            + ", ".join(d.name for d in DEVICES)
        )
    print_ops(model[0], device[0])


if __name__ == "__main__":
    main()
