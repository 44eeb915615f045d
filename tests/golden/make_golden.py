#!/usr/bin/env python3
"""Writes what PyTorch computes for a small model of each family: gpt2.json, gpt2.bin, llama.json, llama.bin.

golden_test.cc trains the same models from the same weights on the same tokens and compares. Run this
by hand, only when the models here change; no test and no build runs it:

    apt install python3-torch        # Debian's, or: pip install torch
    /usr/bin/python3 tests/golden/make_golden.py

The models are written out below in plain PyTorch, after Hugging Face's modeling_gpt2.py and
modeling_llama.py, and share nothing with Headrace but parameter names. Matrices are [out, in]
everywhere; Hugging Face keeps GPT-2's transposed. All is computed in float64 from float32 weights, so
that what is compared against is exact next to float32: it is the mathematics, and does not change with
PyTorch's version or the machine.

FAMILY.json  model (keys of the job file), batch, length, optimizer, tokens (steps x batch x (length+1)),
             loss of each step, and the names and shapes of the tensors in
FAMILY.bin   float32, little-endian: all initial weights, then all gradients of step 1 before clipping,
             both in the order of "tensors"
"""
import json
import pathlib

import torch
import torch.nn.functional as F

STEPS = 20
BATCH = 3
LENGTH = 11
OPTIMIZER = {"learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8,
             "weight_decay": 0.1, "clip_norm": 1.0}

GPT2 = {"family": "gpt2", "vocab_size": 61, "n_layer": 2, "n_embd": 32, "n_head": 4, "n_inner": 72,
        "n_positions": 16, "layer_norm_epsilon": 1e-5}
LLAMA = {"family": "llama", "vocab_size": 61, "num_hidden_layers": 2, "hidden_size": 32,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 56,
         "max_position_embeddings": 16, "rms_norm_eps": 1e-6, "rope_theta": 1000.0}


def gpt2_shapes(c):
    d, m = c["n_embd"], c["n_inner"]
    shapes = {"transformer.wte.weight": (c["vocab_size"], d),
              "transformer.wpe.weight": (c["n_positions"], d)}
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}."
        shapes |= {h + "ln_1.weight": (d,), h + "ln_1.bias": (d,),
                   h + "attn.c_attn.weight": (3 * d, d), h + "attn.c_attn.bias": (3 * d,),
                   h + "attn.c_proj.weight": (d, d), h + "attn.c_proj.bias": (d,),
                   h + "ln_2.weight": (d,), h + "ln_2.bias": (d,),
                   h + "mlp.c_fc.weight": (m, d), h + "mlp.c_fc.bias": (m,),
                   h + "mlp.c_proj.weight": (d, m), h + "mlp.c_proj.bias": (d,)}
    return shapes | {"transformer.ln_f.weight": (d,), "transformer.ln_f.bias": (d,)}


def llama_shapes(c):
    d, m = c["hidden_size"], c["intermediate_size"]
    kv = d // c["num_attention_heads"] * c["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], d)}
    for i in range(c["num_hidden_layers"]):
        h = f"model.layers.{i}."
        shapes |= {h + "input_layernorm.weight": (d,),
                   h + "self_attn.q_proj.weight": (d, d), h + "self_attn.k_proj.weight": (kv, d),
                   h + "self_attn.v_proj.weight": (kv, d), h + "self_attn.o_proj.weight": (d, d),
                   h + "post_attention_layernorm.weight": (d,),
                   h + "mlp.gate_proj.weight": (m, d), h + "mlp.up_proj.weight": (m, d),
                   h + "mlp.down_proj.weight": (d, m)}
    return shapes | {"model.norm.weight": (d,), "lm_head.weight": (c["vocab_size"], d)}


def draw(name, shape):
    """Larger than a real start, and no gain 1 or bias 0: a mistake in any of them must show."""
    noise = torch.randn(shape)
    if len(shape) == 2:
        return noise * 0.15
    return 1 + 0.2 * noise if name.endswith("weight") else 0.1 * noise


def attend(q, k, v):
    """q, k, v: [batch, heads, time, size]."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    out = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
    return out.transpose(1, 2).flatten(2)


def split_heads(x, heads):
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


def gpt2(c, p, ids):
    d, heads, eps = c["n_embd"], c["n_head"], c["layer_norm_epsilon"]
    x = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"][: ids.shape[1]]

    def norm(x, name):
        return F.layer_norm(x, (d,), p[name + ".weight"], p[name + ".bias"], eps)

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(d, -1)
        x = x + linear(attend(*(split_heads(t, heads) for t in qkv)), h + "attn.c_proj")
        wide = linear(norm(x, h + "ln_2"), h + "mlp.c_fc")
        # gelu_new, written out
        wide = 0.5 * wide * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)))
        x = x + linear(wide, h + "mlp.c_proj")
    return F.linear(norm(x, "transformer.ln_f"), p["transformer.wte.weight"])


def rotate(x, theta):
    """Hugging Face's rotary positions: x cos + rotate_half(x) sin."""
    size, length = x.shape[-1], x.shape[-2]
    inverse = 1 / theta ** (torch.arange(0, size, 2, dtype=x.dtype) / size)
    angle = torch.outer(torch.arange(length, dtype=x.dtype), inverse)
    angle = torch.cat((angle, angle), -1)
    half = torch.cat((-x[..., size // 2:], x[..., : size // 2]), -1)
    return x * angle.cos() + half * angle.sin()


def llama(c, p, ids):
    heads, kv, theta = c["num_attention_heads"], c["num_key_value_heads"], c["rope_theta"]
    x = p["model.embed_tokens.weight"][ids]

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]) * p[name + ".weight"]

    def linear(x, name):
        return F.linear(x, p[name + ".weight"])

    for i in range(c["num_hidden_layers"]):
        h = f"model.layers.{i}."
        n = norm(x, h + "input_layernorm")
        q = rotate(split_heads(linear(n, h + "self_attn.q_proj"), heads), theta)
        k = rotate(split_heads(linear(n, h + "self_attn.k_proj"), kv), theta)
        v = split_heads(linear(n, h + "self_attn.v_proj"), kv)
        k, v = (t.repeat_interleave(heads // kv, 1) for t in (k, v))
        x = x + linear(attend(q, k, v), h + "self_attn.o_proj")
        n = norm(x, h + "post_attention_layernorm")
        wide = F.silu(linear(n, h + "mlp.gate_proj")) * linear(n, h + "mlp.up_proj")
        x = x + linear(wide, h + "mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


def train(config, shapes, forward):
    torch.manual_seed(20)
    initial = {name: draw(name, shape) for name, shape in shapes.items()}
    tokens = torch.randint(config["vocab_size"], (STEPS, BATCH, LENGTH + 1))
    p = {name: t.double().requires_grad_() for name, t in initial.items()}
    o = OPTIMIZER
    groups = [{"params": [t for t in p.values() if t.dim() >= 2], "weight_decay": o["weight_decay"]},
              {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=o["learning_rate"], betas=(o["beta1"], o["beta2"]),
                                  eps=o["epsilon"])
    losses, norms, gradients = [], [], None
    for batch in tokens:
        logits = forward(config, p, batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if gradients is None:
            gradients = {name: t.grad.clone() for name, t in p.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), o["clip_norm"]).item())
        optimizer.step()
        losses.append(loss.item())
    return initial, gradients, tokens, losses, norms


def write(config, shapes, forward):
    initial, gradients, tokens, losses, norms = train(config, shapes, forward)
    folder = pathlib.Path(__file__).parent
    stem = folder / config["family"]
    document = {"model": config, "batch": BATCH, "length": LENGTH, "optimizer": OPTIMIZER,
                "loss": losses, "gradient_norm": norms, "tokens": tokens.flatten().tolist(),
                "tensors": [{"name": n, "shape": list(s)} for n, s in shapes.items()]}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    stem.with_suffix(".json").write_text("{" + ",\n".join(lines) + "}\n")
    with stem.with_suffix(".bin").open("wb") as file:
        for tensors in (initial, gradients):
            for name in shapes:
                file.write(tensors[name].float().numpy().astype("<f4").tobytes())
    print(config["family"], "loss", losses[0], "to", losses[-1], "norm", norms[0])


if __name__ == "__main__":
    write(GPT2, gpt2_shapes(GPT2), gpt2)
    write(LLAMA, llama_shapes(LLAMA), llama)
