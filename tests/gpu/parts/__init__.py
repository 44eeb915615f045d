"""The parts of tests/gpu/check, in the order they are run: name, function, limit in seconds, what it does."""
from parts import bench, faults, kernels, memory, training

PARTS = [
    ("kernels", kernels.run, 90, "the kernels' tests on the device"),
    ("gemm", kernels.products, 90, "cuBLASLt against the reference product"),
    ("parity", training.parity, 90, "losses on the device beside the CPU's; a pipeline of both"),
    ("identity", training.identity, 100, "K = 1, 2, 4 workers on one device, over CUDA IPC and gRPC: the same bits"),
    ("errors", faults.errors, 60, "what cannot work is refused, a killed worker named, and the others stay usable"),
    ("memory", memory.predicted, 60, "the plan's bytes beside those taken"),
    ("bench", bench.run, 220, "tokens/s and MFU of GPT-2 124M and 355M in bf16, beside PyTorch"),
    ("sanitizer", kernels.sanitizer, 120, "compute-sanitizer on the kernels' tests"),
]
