"""Puts known loads on a GPU, one after the other, and prints how much each did, as JSON lines.

Needs PyTorch and CuPy. What a load did, divided by what the GPU can do at its clock, is to be compared with
the metrics of the same time, such as dra_device_engine_utilization_ratio. A multiprocessor of an H100 does in a cycle
4096 operations of its tensor cores in bf16, 256 of these in fp64, 256 in fp32 (two for each multiply-add), and 64
fused multiply-adds in fp64 or of pairs in fp16. driver/nvml/README.md has the figures of an H100.
"""

import json
import time

import cupy
import torch

KERNELS = r"""
extern "C" __global__ void fp64(double *o, int n) {
    double x = threadIdx.x, y = 1.0000001;
    for (int i = 0; i < n; i++) x = fma(x, y, 1e-9);
    if (x == 0.12345) o[0] = x;
}
extern "C" __global__ void integer(int *o, int n) {
    int x = threadIdx.x, y = blockIdx.x | 1;
    for (int i = 0; i < n; i++) x = x * y + i;
    if (x == 12345) o[0] = x;
}
extern "C" __global__ void fp16(int *o, int n) {
    unsigned x = 0x3c003c00 + threadIdx.x, y = 0x3c013c01;
    for (int i = 0; i < n; i++) asm volatile("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(x) : "r"(y));
    if (x == 12345) o[0] = x;
}
"""


def phase(name, step, amount, unit, seconds=8.0):
    """Repeats a step that does an amount of a unit."""
    step()
    torch.cuda.synchronize()
    begin, steps = time.time(), 0
    while time.time() - begin < seconds:
        for _ in range(8):
            step()
        steps += 8
        torch.cuda.synchronize()
    end = time.time()
    print(json.dumps({"load": name, "begin": begin, "end": end, "per_second": steps * amount / (end - begin), "unit": unit}), flush=True)
    time.sleep(2)


def product(size, kind):
    a, b = (torch.randn(size, size, device="cuda", dtype=kind) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out), 2 * size**3, "operations"


def copies():
    source = torch.randn(1 << 31, device="cuda", dtype=torch.float16)
    target = torch.empty_like(source)
    phase("copy in memory", lambda: target.copy_(source), 2 * 2 * source.numel(), "bytes read and written")
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    phase("copy to the GPU", lambda: device.copy_(host, non_blocking=True), 1 << 30, "bytes")
    phase("copy from the GPU", lambda: host.copy_(device, non_blocking=True), 1 << 30, "bytes")


def main():
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    print(json.dumps({"multiprocessors": processors}), flush=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    phase("bf16 product", *product(8192, torch.bfloat16))
    phase("fp32 product", *product(4096, torch.float32))
    phase("fp64 product", *product(4096, torch.float64))
    copies()
    module, out = cupy.RawModule(code=KERNELS), cupy.zeros(4, dtype=cupy.float64)
    blocks, threads, rounds = 8 * processors, 256, 200000
    for name in ("fp64", "integer", "fp16"):
        kernel = module.get_function(name)
        phase(name + " kernel", lambda: kernel((blocks,), (threads,), (out, rounds)), blocks * threads * rounds, "multiply-adds")
    kernel = module.get_function("integer")
    phase("a quarter of the multiprocessors", lambda: kernel((processors // 4,), (1024,), (out, rounds)), 0, "")


if __name__ == "__main__":
    main()
