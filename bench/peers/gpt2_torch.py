#!/usr/bin/env python3
"""GPT-2 in plain PyTorch: trains what build/bench/peer_input wrote, and prints loss and seconds of each step.

    build/bench/peer_input job.yaml FOLDER
    bench/peers/.venv/bin/python bench/peers/gpt2_torch.py FOLDER --threads 1 --dtype bf16
    python3 bench/peers/gpt2_torch.py FOLDER --device cuda --dtype bf16 --compile

Prints one JSON object a line: first what runs (torch, threads, capability, …), then for each step
{"step": 1, "loss": 5.54, "seconds": 0.31}. `seconds` is forward, backward, clipping and optimizer of the whole
mini-batch; the loss is its mean, as Headrace reports it.

Written to be fast, not only right: fused attention, fused AdamW, gradients set to None, nothing copied
that need not be. `pipelining_torch.py` runs the same modules on two processes.
"""
import argparse
import json
import os
import pathlib
import sys
import time

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Embedding(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.wte = nn.Parameter(torch.empty(model["vocab_size"], model["n_embd"]))
        self.wpe = nn.Parameter(torch.empty(model["n_positions"], model["n_embd"]))

    def forward(self, ids):
        return F.embedding(ids, self.wte) + self.wpe[: ids.shape[1]]


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        d, inner, epsilon = model["n_embd"], model["n_inner"], model["layer_norm_epsilon"]
        self.heads = model["n_head"]
        self.ln_1 = nn.LayerNorm(d, epsilon)
        self.attn_c_attn = nn.Linear(d, 3 * d)
        self.attn_c_proj = nn.Linear(d, d)
        self.ln_2 = nn.LayerNorm(d, epsilon)
        self.mlp_c_fc = nn.Linear(d, inner)
        self.mlp_c_proj = nn.Linear(inner, d)

    def forward(self, x):
        sequences, length, d = x.shape
        qkv = self.attn_c_attn(self.ln_1(x)).view(sequences, length, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_c_proj(a.transpose(1, 2).reshape(sequences, length, d))
        return x + self.mlp_c_proj(F.gelu(self.mlp_c_fc(self.ln_2(x)), approximate="tanh"))


class Head(nn.Module):
    """`wte`: the embedding's own parameter where they share a process, a copy where they do not."""

    def __init__(self, model, wte):
        super().__init__()
        self.ln_f = nn.LayerNorm(model["n_embd"], model["layer_norm_epsilon"])
        self.wte = wte

    def forward(self, x):
        return F.linear(self.ln_f(x), self.wte)


class Stage(nn.Module):
    """Layers [first, end) of embedding, blocks, head, numbered as Headrace's."""

    def __init__(self, model, first, end, recompute=False):
        super().__init__()
        n = model["n_layer"]
        self.recompute = recompute
        self.layers = nn.ModuleDict()
        for i in range(first, end):
            if i == 0:
                self.layers["embedding"] = Embedding(model)
            elif i <= n:
                self.layers[f"block_{i - 1}"] = Block(model)
            else:
                tied = model["tied"] and first == 0
                wte = (self.layers["embedding"].wte if tied else
                       nn.Parameter(torch.empty(model["vocab_size"], model["n_embd"])))
                self.layers["head"] = Head(model, wte)

    def forward(self, x):
        for name, layer in self.layers.items():
            if self.recompute and self.training and name.startswith("block"):
                x = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x)
        return x


def headrace_name(name, tied):
    """'layers.block_3.mlp_c_fc.bias' → 'transformer.h.3.mlp.c_fc.bias'."""
    _, layer, rest = name.split(".", 2)
    if layer.startswith("block"):
        rest = rest.replace("attn_", "attn.").replace("mlp_", "mlp.")
        return f"transformer.h.{layer[len('block_'):]}.{rest}"
    if rest in ("wte", "wpe"):
        return f"transformer.{rest}.weight" if layer == "embedding" or tied else "lm_head.weight"
    return f"transformer.{rest}"


class Job:
    """What peer_input wrote."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        document = json.loads((folder / "job.json").read_text())
        self.model, self.training = document["model"], document["training"]
        flat = numpy.fromfile(folder / "weights.bin", "<f4")
        self.weights, at = {}, 0
        for tensor in document["tensors"]:
            size = int(numpy.prod(tensor["shape"]))
            self.weights[tensor["name"]] = flat[at: at + size].reshape(tensor["shape"])
            at += size
        if at != flat.size:
            raise SystemExit(f"{folder}/weights.bin has {flat.size} numbers, job.json names {at}")
        t = self.training
        self.tokens = torch.from_numpy(numpy.fromfile(folder / "tokens.bin", "<i4")).long().view(
            t["steps"], t["batch_size"], t["sequence_length"] + 1)

    def load(self, stage):
        """Fills a stage's parameters; every name must be there with its shape."""
        with torch.no_grad():
            for name, parameter in stage.named_parameters():
                weight = self.weights[headrace_name(name, self.model["tied"])]
                if tuple(weight.shape) != tuple(parameter.shape):
                    raise SystemExit(f"{name} is {tuple(parameter.shape)}, the file has {weight.shape}")
                parameter.copy_(torch.from_numpy(weight))

    def optimizer(self, parameters):
        t = self.training
        parameters = list(parameters)
        groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": t["weight_decay"]},
                  {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
        return torch.optim.AdamW([g for g in groups if g["params"]], lr=t["learning_rates"][0],
                                 betas=(t["beta1"], t["beta2"]), eps=t["epsilon"], fused=True)

    def set_rate(self, optimizer, step):
        for group in optimizer.param_groups:
            group["lr"] = self.training["learning_rates"][step - 1]

    def batch(self, step, device="cpu"):
        """Step from 1: ids and targets, [batch, length] each."""
        tokens = self.tokens[step - 1].to(device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def describe(arguments, **more):
    return {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(), "preload": os.environ.get("LD_PRELOAD", ""),
            **vars(arguments), **more}


def summed_loss(stage, x, y):
    return F.cross_entropy(stage(x).flatten(0, 1), y.flatten(), reduction="sum")


def train_step(job, stage, optimizer, step, micro_batches, autocast, device="cpu", loss_of=summed_loss):
    """One mini-batch: the mean loss. Waits for a GPU once, at the end."""
    ids, targets = job.batch(step, device)
    tokens, total = ids.numel(), torch.zeros((), dtype=torch.float64, device=device)
    for x, y in zip(ids.tensor_split(micro_batches), targets.tensor_split(micro_batches)):
        with autocast():
            loss = loss_of(stage, x, y) / tokens
        loss.backward()
        total += loss.detach()
        del loss
    if job.training["clip_norm"] > 0:
        nn.utils.clip_grad_norm_(stage.parameters(), job.training["clip_norm"], foreach=True)
    job.set_rate(optimizer, step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, help="default: the job's")
    parser.add_argument("--micro-batches", type=int, help="default: the job's")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast")
    parser.add_argument("--recompute", choices=["never", "always"], default="never",
                        help="always: each block is run again in backward")
    parser.add_argument("--compile", action="store_true", help="torch.compile: its code is made in the first step")
    parser.add_argument("--paced", action="store_true",
                        help="wait for a line on standard input before each step, to be measured in turn with others")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    job = Job(arguments.folder)
    steps = arguments.steps or job.training["steps"]
    if steps > job.training["steps"]:
        parser.error(f"--steps {steps}: the folder has tokens for {job.training['steps']}")
    stage = Stage(job.model, 0, job.model["n_layer"] + 2, arguments.recompute == "always")
    job.load(stage)
    stage.to(arguments.device)
    optimizer = job.optimizer(stage.parameters())
    # With the loss inside, the compiler joins the logits' conversion to it.
    loss_of = torch.compile(summed_loss) if arguments.compile else summed_loss
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else ""
    print(json.dumps(describe(arguments, device_name=name)), flush=True)

    def autocast():
        return torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.dtype == "bf16")

    for step in range(1, steps + 1):
        if arguments.paced and not sys.stdin.readline():
            break
        start = time.perf_counter()
        loss = train_step(job, stage, optimizer, step,
                          arguments.micro_batches or job.training["micro_batches"], autocast, arguments.device, loss_of)
        print(json.dumps({"step": step, "loss": loss, "seconds": time.perf_counter() - start}),
              flush=True)


if __name__ == "__main__":
    main()
