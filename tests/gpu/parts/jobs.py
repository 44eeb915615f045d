"""The jobs that the parts train, in three sizes, on tokens drawn here."""
import array
import copy
import random

MODELS = {
    "full": {
        "gpt2": {"family": "gpt2", "vocab_size": 1031, "n_layer": 6, "n_embd": 256, "n_head": 4, "n_positions": 128,
                 "embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1},
        "llama": {"family": "llama", "vocab_size": 1031, "num_hidden_layers": 6, "hidden_size": 256,
                  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 688,
                  "max_position_embeddings": 128},
    },
    "dry": {
        "gpt2": {"family": "gpt2", "vocab_size": 61, "n_layer": 2, "n_embd": 32, "n_head": 1, "n_positions": 8,
                 "resid_pdrop": 0.1},
        "llama": {"family": "llama", "vocab_size": 61, "num_hidden_layers": 2, "hidden_size": 32,
                  "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 44,
                  "max_position_embeddings": 8},
    },
}
TRAINING = {
    "full": {"steps": 10, "batch_size": 8, "micro_batches": 4, "sequence_length": 128},
    "quick": {"steps": 3, "batch_size": 4, "micro_batches": 4, "sequence_length": 128},
    "dry": {"steps": 2, "batch_size": 4, "micro_batches": 2, "sequence_length": 8},
}


def tokens(context, count, vocabulary):
    """A data section: `count` tokens that follow each other with some order, so that there is something to learn."""
    path = context.work / f"tokens-{count}-{vocabulary}.bin"
    if not path.exists():
        draw, drawn, last = random.Random(1), array.array("I"), 0
        for _ in range(count):
            last = (31 * last + 7) % vocabulary if draw.random() < 0.5 else draw.randrange(vocabulary)
            drawn.append(last)
        path.write_bytes(drawn.tobytes())
    return {"tokens": str(path), "token_type": "uint32", "validation_split": 0.0, "seed": 1}


def small(context, family, precision, **pipeline):
    """A job of a small model; `pipeline` are keys of that section."""
    model = MODELS["dry" if context.size == "dry" else "full"][family]
    training = copy.deepcopy(TRAINING[context.size])
    training.update(precision=precision, clip_norm=1.0, seed=3,
                    optimizer={"kind": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1})
    return {"name": f"{family}-{precision}", "model": dict(model),
            "data": tokens(context, 20_000 if context.size != "dry" else 2_000, model["vocab_size"]),
            "training": training, "pipeline": {"stages": 1, "schedule": "1f1b", **pipeline}}


# GPT-2's sizes, with the vocabulary rounded up as is usual on GPUs.
GPT2 = {
    "124M": {"n_layer": 12, "n_embd": 768, "n_head": 12},
    "355M": {"n_layer": 24, "n_embd": 1024, "n_head": 16},
}


def gpt2(context, name, steps, batch, micro_batches, **pipeline):
    """A job of GPT-2 `name` in bf16, 1024 tokens a sequence, no dropout; tiny where it is a dry run."""
    keys = {**GPT2[name], "n_positions": 1024, "vocab_size": 50304}
    length = 1024
    if context.size == "dry":
        keys, length = {"n_layer": 2, "n_embd": 32, "n_head": 1, "n_positions": 8, "vocab_size": 61}, 8
    needed = (length + 1) * batch * 2
    return {"name": f"gpt2-{name}", "model": {"family": "gpt2", **keys},
            "data": tokens(context, max(needed, 2_000), keys["vocab_size"]),
            "training": {"steps": steps, "batch_size": batch, "micro_batches": micro_batches, "sequence_length": length,
                         "precision": "bf16", "clip_norm": 1.0,
                         "optimizer": {"kind": "adamw", "learning_rate": 3e-4, "weight_decay": 0.1}},
            "pipeline": {"stages": 1, "schedule": "1f1b", "recompute": "never", **pipeline}}


def flops_per_token(model, length):
    """Forward and backward; attention counted whole, as is usual, though half of it is not computed."""
    layers, width = model["n_layer"], model["n_embd"]
    return 6 * (12 * layers * width * width + model["vocab_size"] * width) + 12 * layers * length * width
