"""What there is: the device, CUDA's libraries, PyTorch."""
import json
import re
import subprocess

from parts.context import Device, MEASURED, Result, Skip, tail

TORCH = ("import json, torch; print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, "
         "'usable': torch.cuda.is_available()}))")


def probe(context):
    """Fills in context.device from `headrace-worker --probe`. Skip where there is none; in a dry run
    CPUs stand in unless an emulated device was meant to be there."""
    done = context.run([context.options.program("headrace-worker"), "--probe"], limit=60)
    found = re.search(r"^cuda:(\d+): (.*), (\d+) MiB, compute capability (\S+)", done.stdout, re.MULTILINE)
    if context.size == "dry" and not found and "HEADRACE_CUDA_MODULE" not in context.env:
        context.device, context.kind = Device(0, "the CPU, standing in", 4096, "0.0"), "cpu"
        return done.stdout
    if done.returncode != 0 or not found:
        why = re.search(r"^cuda: none: (.*)", done.stdout, re.MULTILINE)
        raise Skip("there is no CUDA device: " + (why[1] if why else tail(done.stdout)))
    context.num_devices = len(re.findall(r"^cuda:\d+: ", done.stdout, re.MULTILINE))
    context.device = Device(int(found[1]), found[2], int(found[3]), found[4].rstrip(","))
    return done.stdout


def find_torch(context):
    if context.size == "dry":
        return "left out in a dry run"
    try:
        done = subprocess.run([context.python, "-c", TORCH], capture_output=True, text=True, timeout=90)
        about = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, OSError, json.JSONDecodeError):
        return f"{context.python} has no PyTorch"
    if not about["usable"]:
        return f"PyTorch {about['version']} does not see the device"
    context.torch = about
    return f"PyTorch {about['version']}, CUDA {about['cuda']}"


def run(context):
    text = probe(context)
    device = context.device
    yield Result("device", MEASURED, f"{device.name}, {device.memory_mib} MiB, compute capability {device.capability}"
                 + (f"; the first of {context.num_devices}" if context.num_devices > 1 else ""))
    yield Result("driver", MEASURED, next((line for line in text.splitlines() if "driver" in line), ""))
    yield Result("libraries", MEASURED, context.env.get("LD_LIBRARY_PATH") or "none beside the system's")
    yield Result("peer", MEASURED, find_torch(context))
