/*
 * load BYTES SHARE COPY puts a known load on the first GPU of CUDA_VISIBLE_DEVICES: it allocates
 * BYTES of memory, keeps all multiprocessors busy for SHARE of the time, and copies COPY bytes to
 * the GPU in each period, of 50 ms in the mean. Periods vary: the driver looks 5 times a second which
 * process runs, and would see a load with a constant period of 50 ms always or never. It prints "ready" when it has started, runs until its standard
 * input ends, and then prints what it has done.
 *
 * It opens CUDA's driver library at run time and is compiled without CUDA's headers. The
 * declarations follow the documentation of the CUDA driver API.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long deviceptr; /* CUdeviceptr */

enum {
    MULTIPROCESSOR_COUNT = 16, /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
    BLOCKS = 4,                /* of each multiprocessor */
    THREADS = 256,             /* of each block */
};

static const uint64_t period = 50000000; /* ns, in the mean */

/* next_period returns a period between 0.7 and 1.3 of the mean, evenly distributed. */
static uint64_t next_period(void) { return period * 7 / 10 + (uint64_t)random() % (period * 6 / 10); }

/*
 * spin computes until a number of nanoseconds have passed, and stores the result, so that the
 * computation is not optimized away. It is PTX 4.0 for sm_50, which the driver compiles for sm_50 and
 * newer architectures. Each instruction is as LLVM's NVPTX back end writes it.
 */
static const char spin[] =
    ".version 4.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry spin(.param .u64 nanoseconds, .param .u64 result)\n"
    "{\n"
    "    .reg .pred %p<3>;\n"
    "    .reg .b32 %r<2>;\n"
    "    .reg .f32 %f<2>;\n"
    "    .reg .b64 %rd<7>;\n"
    "    ld.param.u64 %rd1, [nanoseconds];\n"
    "    ld.param.u64 %rd2, [result];\n"
    "    cvta.to.global.u64 %rd3, %rd2;\n"
    "    mov.f32 %f1, 0f3F800000;\n"
    "    mov.u64 %rd4, %globaltimer;\n"
    "AGAIN:\n"
    "    mov.u32 %r1, -256;\n"
    "WORK:\n"
    "    fma.rn.f32 %f1, %f1, 0f3F7FFFEF, 0f3A83126F;\n"
    "    add.s32 %r1, %r1, 1;\n"
    "    setp.ne.s32 %p1, %r1, 0;\n"
    "    @%p1 bra WORK;\n"
    "    mov.u64 %rd5, %globaltimer;\n"
    "    sub.s64 %rd6, %rd5, %rd4;\n"
    "    setp.lt.u64 %p2, %rd6, %rd1;\n"
    "    @%p2 bra AGAIN;\n"
    "    st.global.f32 [%rd3], %f1;\n"
    "    ret;\n"
    "}\n";

/* The functions of libcuda.so.1; each returns a CUresult; 0 is CUDA_SUCCESS. */
static int (*cuInit)(unsigned int);
static int (*cuDeviceGet)(int *, int);
static int (*cuDeviceGetAttribute)(int *, int, int);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *);
static int (*cuMemAlloc_v2)(deviceptr *, size_t);
static int (*cuMemsetD8_v2)(deviceptr, unsigned char, size_t);
static int (*cuMemcpyHtoD_v2)(deviceptr, const void *, size_t);
static int (*cuModuleLoadData)(void **, const void *);
static int (*cuModuleGetFunction)(void **, void *, const char *);
static int (*cuLaunchKernel)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                             void *, void **, void **);
static int (*cuCtxSynchronize)(void);

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found)
        die(name, dlerror());
    return found;
}

#define FIND(f) f = (__typeof__(f))find(library, #f)

static void open_library(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        die("open CUDA", dlerror());
    FIND(cuInit);
    FIND(cuDeviceGet);
    FIND(cuDeviceGetAttribute);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2);
    FIND(cuMemsetD8_v2);
    FIND(cuMemcpyHtoD_v2);
    FIND(cuModuleLoadData);
    FIND(cuModuleGetFunction);
    FIND(cuLaunchKernel);
    FIND(cuCtxSynchronize);
}

static void must(int result, const char *what) {
    char why[32];
    if (result == 0)
        return;
    snprintf(why, sizeof why, "CUresult %d", result);
    die(what, why);
}

#define MUST(f, ...) must(f(__VA_ARGS__), #f)

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ended waits for the end of the standard input, at most until a time. */
static int ended(uint64_t until) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    uint64_t at = now();
    return poll(&input, 1, until > at ? (int)((until - at) / 1000000) : 0) > 0;
}

/* prepare creates the context, allocates the memory and loads the kernel. */
static void *prepare(size_t bytes, deviceptr *memory, int *multiprocessors) {
    int device;
    void *context, *module, *function;
    MUST(cuInit, 0);
    MUST(cuDeviceGet, &device, 0);
    MUST(cuDeviceGetAttribute, multiprocessors, MULTIPROCESSOR_COUNT, device);
    MUST(cuDevicePrimaryCtxRetain, &context, device);
    MUST(cuCtxSetCurrent, context);
    MUST(cuMemAlloc_v2, memory, bytes);
    MUST(cuMemsetD8_v2, *memory, 0, bytes);
    MUST(cuModuleLoadData, &module, spin);
    MUST(cuModuleGetFunction, &function, module, "spin");
    return function;
}

int main(int argc, char **argv) {
    if (argc != 4)
        die(argv[0], "usage: load BYTES SHARE COPY");
    size_t bytes = strtoull(argv[1], NULL, 10), copy = strtoull(argv[3], NULL, 10);
    uint64_t nanoseconds = (uint64_t)(strtod(argv[2], NULL) * (double)period);
    if (bytes < 4 || copy > bytes || nanoseconds > period * 7 / 10)
        die(argv[0], "BYTES, SHARE or COPY makes no sense");
    srandom((unsigned int)getpid());
    open_library();
    deviceptr memory;
    int multiprocessors;
    void *function = prepare(bytes, &memory, &multiprocessors), *source = calloc(1, copy + 1);
    void *parameters[] = {&nanoseconds, &memory};
    unsigned long long rounds = 0;
    uint64_t begun = now(), next = begun;
    do {
        if (nanoseconds)
            MUST(cuLaunchKernel, function, (unsigned int)multiprocessors * BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL);
        MUST(cuCtxSynchronize);
        if (copy)
            MUST(cuMemcpyHtoD_v2, memory, source, copy);
        if (rounds++ == 0) {
            puts("ready");
            fflush(stdout);
        }
        next += next_period();
    } while (!ended(next));
    printf("%llu rounds, %llu bytes copied in %.3f s\n", rounds, rounds * copy, (double)(now() - begun) / 1e9);
    return 0;
}
