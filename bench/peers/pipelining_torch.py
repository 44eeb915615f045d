#!/usr/bin/env python3
"""The GPT-2 of gpt2_torch.py as a pipeline of torch.distributed.pipelining: processes over gloo.

    build/bench/peer_input job.yaml FOLDER
    bench/peers/.venv/bin/python bench/peers/pipelining_torch.py FOLDER --cuts 4 --schedule 1f1b

Starts one process for each stage itself; `--cuts 4` is two stages, layers [0, 4) and [4, end), numbered as Headrace's
(0 the embedding, then the blocks, last the head). Prints JSON lines as gpt2_torch.py does. `seconds` runs from
the end of the step before to the end of this one on the last stage; the first step's includes working out shapes.

A tied head holds a copy of the embedding's weight; both gradients are summed by an all-reduce of the first
and the last process, which then update their copies alike.
"""
import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import gpt2_torch

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--cuts", type=int, nargs="+", required=True,
                        help="first layer of each stage but the first")
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--steps", type=int, help="default: the job's")
    parser.add_argument("--micro-batches", type=int, help="default: the job's")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--recompute", choices=["never", "always"], default="never")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args()


def mean_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class AutocastStage(gpt2_torch.Stage):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def work(arguments):
    """One process: its stage, for all steps."""
    die_with_parent()
    torch.set_num_threads(arguments.threads)
    ranks = len(arguments.cuts) + 1
    rank, last = arguments.rank, arguments.rank == ranks - 1
    dist.init_process_group("gloo", init_method=f"file://{arguments.store}", rank=rank,
                            world_size=ranks)
    job = gpt2_torch.Job(arguments.folder)
    ends = [0, *arguments.cuts, job.model["n_layer"] + 2]
    kind = AutocastStage if arguments.dtype == "bf16" else gpt2_torch.Stage
    module = kind(job.model, ends[rank], ends[rank + 1], arguments.recompute == "always")
    job.load(module)
    optimizer = job.optimizer(module.parameters())
    micro_batches = arguments.micro_batches or job.training["micro_batches"]
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = SCHEDULES[arguments.schedule](stage, micro_batches, loss_fn=mean_loss)
    tie = dist.new_group([0, ranks - 1])
    wte = (module.layers["embedding"].wte if rank == 0 else
           module.layers["head"].wte if last else None)
    if last:
        print(json.dumps(gpt2_torch.describe(arguments)), flush=True)
    dist.barrier()
    before = time.perf_counter()
    for step in range(1, (arguments.steps or job.training["steps"]) + 1):
        ids, targets = job.batch(step)
        losses = []
        if rank == 0:
            schedule.step(ids)
        elif last:
            schedule.step(target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step()
        if job.model["tied"] and wte is not None:
            dist.all_reduce(wte.grad, group=tie)
        job.set_rate(optimizer, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if last:
            now = time.perf_counter()
            loss = sum(loss.item() for loss in losses) / micro_batches
            print(json.dumps({"step": step, "loss": loss, "seconds": now - before}), flush=True)
            before = now
    dist.barrier()
    dist.destroy_process_group()


def launch(arguments):
    """Starts every stage's process, ends all when one fails; the first bad exit status."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--store", os.path.join(folder, "store"), "--rank"]
        environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
        processes = [subprocess.Popen([*command, str(rank)], env=environment)
                     for rank in range(len(arguments.cuts) + 1)]
        try:
            while any(p.poll() is None for p in processes):
                if any(p.returncode for p in processes):
                    break
                time.sleep(0.02)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return next((p.returncode for p in processes if p.returncode), 0)


if __name__ == "__main__":
    parsed = parse()
    if parsed.rank is None:
        sys.exit(launch(parsed))
    work(parsed)
