"""The kernels' tests, and cuBLASLt against the reference product, on the device; compute-sanitizer on the former."""
import json
import pathlib
import re
import shutil
import subprocess

from parts.context import FAILED, PASSED, SKIPPED, Result, Skip, judged, tail

PRODUCTS = "CublasLt*"
# What racecheck takes minutes for is left out: it follows every access to shared memory.
RACES = "Norms*:Losses*:Updates*:SquaredNorms*:AttentionKernels*GiveTheSameBits*:AttentionKernels*Rotate*"
MORE = {"memcheck": ["--report-api-errors", "no"]}  # a test provokes some
NO_DEVICE = 77


def gtest(context, name, only, limit, prefix=()):
    """(the tests as GoogleTest reports them, the process)."""
    report = context.work / f"{name}.json"
    done = context.run([*prefix, context.options.build / "tests" / "cuda_device_test", f"--gtest_filter={only}",
                        f"--gtest_output=json:{report}"], limit)
    tests = []
    if report.exists():
        for suite in json.loads(report.read_text())["testsuites"]:
            tests += [{**test, "suite": suite["name"]} for test in suite["testsuite"] if test["status"] == "RUN"]
    return tests, done


def failures(tests):
    return [f"{t['suite']}.{t['name']}: " + t["failures"][0]["failure"].replace("\n", " ")[:300]
            for t in tests if t.get("failures")]


def run(context):
    if context.size == "dry":
        raise Skip("cuda_device_test is built for a device; ctest runs the same tests under emulation")
    tests, done = gtest(context, "kernels", f"-{PRODUCTS}", 120)
    if done.returncode == NO_DEVICE:
        raise Skip(tail(done.stdout))
    if not tests:
        yield Result("kernel tests", FAILED, f"ended with {done.returncode}: {tail(done.stdout)}")
        return
    bad = failures(tests)
    yield judged("kernel tests", done.returncode == 0 and not bad,
                 f"{len(tests) - len(bad)} of {len(tests)} passed" if done.returncode == 0 or bad else tail(done.stdout))
    for text in bad[:20]:
        yield Result("  " + text.split(":", 1)[0], FAILED, text.split(":", 1)[1].strip())


def products(context):
    if context.size == "dry":
        raise Skip("there is no cuBLASLt under emulation")
    tests, done = gtest(context, "gemm", PRODUCTS, 150)
    if not tests:
        yield Result("cuBLASLt", FAILED, f"ended with {done.returncode}: {tail(done.stdout)}")
    for test in tests:
        errors = [f"{key} {float(test[key]):.2g}" for key in ("fp32_to_fp32", "bf16_to_fp32", "bf16_to_bf16", "tf32")
                  if key in test]
        bad = test.get("failures")
        detail = bad[0]["failure"].replace("\n", " ")[:300] if bad else "largest error: " + ", ".join(errors) if errors else ""
        yield judged(re.sub("([a-z])([A-Z])", r"\1 \2", test["name"]), not bad, detail)


def sanitizer_program():
    for pattern in ("usr/local/cuda*/bin/compute-sanitizer", "usr/local/cuda*/compute-sanitizer/compute-sanitizer",
                    "opt/nvidia/**/compute-sanitizer"):
        for path in sorted(pathlib.Path("/").glob(pattern)):
            if path.is_file():
                return str(path)
    return shutil.which("compute-sanitizer")


def sanitizer(context):
    if context.size == "dry":
        raise Skip("sanitizers of the emulation are ctest's")
    program = sanitizer_program()
    if not program:
        raise Skip("compute-sanitizer is not on this machine")
    for tool, only, limit in (("memcheck", f"-{PRODUCTS}", 60), ("synccheck", f"-{PRODUCTS}", 40), ("racecheck", RACES, 60)):
        try:
            tests, done = gtest(context, tool, only, limit, [program, "--tool", tool, "--error-exitcode", "99", *MORE.get(tool, [])])
        except subprocess.TimeoutExpired:
            yield Result(tool, SKIPPED, f"not done after {min(limit, context.left()):.0f} s")
            continue
        yield verdict(tool, tests, done)


def verdict(tool, tests, done):
    refused = re.search(r".*(Device not supported|is not supported|Failed to init).*", done.stdout)
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", done.stdout)
    if refused:
        return Result(tool, SKIPPED, f"it does not work here: {refused[0].strip('= ')}")
    if not summary:
        return Result(tool, SKIPPED, f"no report: {tail(done.stdout)}")
    clean = done.returncode == 0 and re.search(r"SUMMARY: 0 ", summary[-1])
    return Result(tool, PASSED if clean else FAILED, f"{len(tests)} tests: {summary[-1]}" + (
        "" if clean else " " + first_report(done.stdout)))


def first_report(text):
    lines = [line.lstrip("= ").strip() for line in text.splitlines() if line.startswith("=========")]
    return "; ".join(line for line in lines if line and "SANITIZER" not in line)[:400]
