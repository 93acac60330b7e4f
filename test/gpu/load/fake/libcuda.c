/*
 * A fake of libcuda.so.1 for load.c. It checks that calls have the order that the documentation of
 * the CUDA driver API requires, lets kernels take the time of their first parameter, and logs calls
 * to the file FAKE_CUDA_LOG. A call out of order returns CUDA_ERROR_INVALID_CONTEXT.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_IMAGE = 200, NOT_FOUND = 500 };

static int initialised, current, a_context, a_module, a_function;
static unsigned long long allocated, pending; /* bytes; ns that launched kernels take */

static int say(int result, const char *format, ...) {
    FILE *file = fopen(getenv("FAKE_CUDA_LOG"), "a");
    va_list values;
    va_start(values, format);
    vfprintf(file, format, values);
    va_end(values);
    fprintf(file, " %d\n", result);
    fclose(file);
    return result;
}

static int ready(void) { return current ? SUCCESS : initialised ? INVALID_CONTEXT : NOT_INITIALIZED; }

int cuInit(unsigned int flags) {
    initialised = flags == 0;
    return say(flags ? INVALID_VALUE : SUCCESS, "cuInit");
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return say(initialised ? SUCCESS : NOT_INITIALIZED, "cuDeviceGet %d of %s", ordinal, getenv("CUDA_VISIBLE_DEVICES"));
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = 132;
    return say(initialised && device == 0 && attribute == 16 ? SUCCESS : INVALID_VALUE, "cuDeviceGetAttribute %d", attribute);
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &a_context;
    return say(initialised && device == 0 ? SUCCESS : NOT_INITIALIZED, "cuDevicePrimaryCtxRetain");
}

int cuCtxSetCurrent(void *context) {
    current = context == &a_context;
    return say(ready(), "cuCtxSetCurrent");
}

int cuMemAlloc_v2(unsigned long long *memory, size_t bytes) {
    *memory = 0x700000000000;
    allocated = bytes;
    return say(ready(), "cuMemAlloc_v2 %zu", bytes);
}

int cuMemsetD8_v2(unsigned long long memory, unsigned char value, size_t bytes) {
    return say(memory == 0x700000000000 && bytes <= allocated ? ready() : INVALID_VALUE, "cuMemsetD8_v2 %d %zu", value, bytes);
}

int cuMemcpyHtoD_v2(unsigned long long memory, const void *from, size_t bytes) {
    return say(memory == 0x700000000000 && from && bytes <= allocated ? ready() : INVALID_VALUE, "cuMemcpyHtoD_v2 %zu", bytes);
}

int cuModuleLoadData(void **module, const void *image) {
    *module = &a_module;
    return say(strncmp(image, ".version ", 9) == 0 && strstr(image, ".entry spin(") ? ready() : INVALID_IMAGE, "cuModuleLoadData");
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = &a_function;
    return say(module == &a_module && strcmp(name, "spin") == 0 ? ready() : NOT_FOUND, "cuModuleGetFunction %s", name);
}

int cuLaunchKernel(void *function, unsigned int x, unsigned int y, unsigned int z, unsigned int threads, unsigned int ty, unsigned int tz,
                   unsigned int shared, void *stream, void **parameters, void **extra) {
    int good = function == &a_function && y == 1 && z == 1 && ty == 1 && tz == 1 && shared == 0 && !stream && !extra &&
               *(unsigned long long *)parameters[1] == 0x700000000000;
    pending += *(unsigned long long *)parameters[0];
    return say(good ? ready() : INVALID_VALUE, "cuLaunchKernel %u x %u, %llu ns", x, threads, *(unsigned long long *)parameters[0]);
}

int cuCtxSynchronize(void) {
    struct timespec t = {.tv_sec = (time_t)(pending / 1000000000), .tv_nsec = (long)(pending % 1000000000)};
    nanosleep(&t, NULL);
    pending = 0;
    return say(ready(), "cuCtxSynchronize");
}
