"""Random small jobs, and what each comes to where nothing disturbs it."""
import pathlib
import random

from chaos.cluster import Failure

ENDED = ("DONE", "FAILED", "CANCELLED")


def short_state(job):
    return str(job.get("state", "")).upper()


def write_text(folder):
    """A text to train on."""
    draw = random.Random(5)
    words = "the river turns a wheel that carries rain over stone and corn to an old house".split()
    path = pathlib.Path(folder) / "text.txt"
    path.write_text("\n".join(" ".join(draw.choices(words, k=9)) for _ in range(600)))
    return str(path)


def gpt2(draw):
    dropout = draw.choice([0.0, 0.1])
    return {"family": "gpt2", "vocab_size": 256, "n_layer": draw.randint(1, 4), "n_embd": draw.choice([16, 32, 48]),
            "n_head": 2, "n_positions": 16, "tie_word_embeddings": draw.random() < 0.6, "embd_pdrop": dropout,
            "resid_pdrop": dropout, "attn_pdrop": dropout}


def llama(draw):
    width = draw.choice([16, 32, 48])
    return {"family": "llama", "vocab_size": 256, "num_hidden_layers": draw.randint(1, 4), "hidden_size": width,
            "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 2 * width + 8,
            "max_position_embeddings": 16}


def optimizer(draw):
    return draw.choice([
        {"kind": "adamw", "learning_rate": 0.003, "weight_decay": 0.1},
        {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9},
        {"kind": "rmsprop", "learning_rate": 0.001, "momentum": 0.5},
    ])


def draw_job(draw, number, text, steps, workers, shared_folder):
    """A job file as a dictionary. `draw` decides all of it."""
    model = gpt2(draw) if draw.random() < 0.6 else llama(draw)
    batch = draw.randint(3, 8)
    checkpoint = {"every_steps": draw.choice([0, 3, 5, 10]), "every_minutes": 0, "keep_last": draw.randint(1, 3),
                  "keep_every": draw.choice([0, 0, 20]), "replicate": draw.choice(["auto", "neighbour", "off"]),
                  "replicate_every": draw.choice([1, 2, 4])}
    if checkpoint["replicate"] == "off":
        del checkpoint["replicate_every"]
    if draw.random() < 0.25:
        checkpoint["store"] = f"file://{shared_folder}"
    return {
        "name": f"chaos-{number}", "model": model,
        "data": {"text": text, "tokenizer": "byte", "seed": draw.randrange(1000)},
        "training": {"steps": steps, "batch_size": batch, "micro_batches": draw.randint(1, batch),
                     "sequence_length": draw.choice([8, 12, 16]), "seed": draw.randrange(1000), "clip_norm": 1.0,
                     "eval_every": draw.choice([0, 7]), "eval_batches": 1, "optimizer": optimizer(draw)},
        "pipeline": {"stages": draw.choice(["auto", *range(1, min(3, workers) + 1)]),
                     "schedule": draw.choice(["gpipe", "1f1b"]),
                     "recompute": draw.choice(["always", "except_last", "never"])},
        "checkpoint": checkpoint,
        "recovery": {"restart": "auto", "elastic": draw.choice(["auto", "off"]), "coordinator_timeout_s": 120},
    }


def outcome(job):
    """What must be the same with and without faults."""
    return {"steps": [(step["step"], step["loss"], step["gradient_norm"], step.get("validation_loss"))
                      for step in job.get("steps", [])],
            "weights": job.get("weights_sha256")}


def undisturbed(cluster, job):
    """The same job where nothing happens to it: on one worker, without checkpoints."""
    quiet = {**job, "pipeline": {**job["pipeline"], "stages": 1}, "checkpoint": {"every_minutes": 0, "replicate": "off"},
             "recovery": {"restart": "off"}}
    name = cluster.submit(quiet)
    cluster.must("watch", name, seconds=300)
    done = cluster.describe(name)
    if short_state(done) != "DONE":
        raise Failure(f"the undisturbed run of {job['name']} ended so: {done.get('message')}")
    return outcome(done)


def differences(expected, job):
    """In words; empty: none."""
    found, wrong = outcome(job), []
    if found["weights"] != expected["weights"]:
        wrong.append(f"weights_sha256 is {found['weights']}, undisturbed {expected['weights']}")
    if len(found["steps"]) != len(expected["steps"]):
        wrong.append(f"{len(found['steps'])} steps, undisturbed {len(expected['steps'])}")
    for one, other in zip(found["steps"], expected["steps"]):
        if one != other:
            wrong.append(f"step, loss, norm, validation: {one}, undisturbed {other}")
            break
    return wrong
