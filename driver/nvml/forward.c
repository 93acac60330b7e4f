//go:build cgo

/*
 * What these functions buy: an upgrade of NVIDIA's driver needs no restart of the exporter. go-nvml lets the dynamic
 * linker bind each NVML function at its first call, for good. From then on the library cannot be unloaded, the library
 * of a new driver is never used (every call fails with "driver/library version mismatch" until the process ends), and a
 * call of a function that an older library lacks ends the process. The functions below replace NVML's in this program:
 * each looks its namesake up in the library that is open now, and answers FUNCTION_NOT_FOUND if there is none.
 * TestNewLibrary exchanges the library under a running source; TestOldLibrary reads with one that lacks functions.
 *
 * They pass on six integer registers and know no types: NVML's functions take at most six parameters, which are
 * pointers, integers and structs of one pointer. The ABIs of NVML's platforms (System V on x86-64, AAPCS64) pass all of
 * these in integer registers. The functions are hidden, so that other libraries such as DCGM's do not bind to them.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "forward.h"

enum { /* nvmlReturn_t */
    SUCCESS = 0,
    UNINITIALIZED = 1,
    FUNCTION_NOT_FOUND = 13,
};

typedef uintptr_t (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static void *library;
static char library_path[4096];
static int initialised;
static int shutdown_answer;

void dra_nvml_close(void) {
    if (library)
        dlclose(library);
    library = NULL;
}

const char *dra_nvml_open(char *path) {
    const char *failure = NULL;
    if (library && strcmp(path, library_path) != 0)
        dra_nvml_close();
    if (!library && strlen(path) >= sizeof library_path)
        failure = "its path is too long";
    else if (!library && !(library = dlopen(strcpy(library_path, path), RTLD_LAZY | RTLD_LOCAL)))
        failure = dlerror();
    free(path);
    return failure;
}

int dra_nvml_shutdown_answer(void) { return shutdown_answer; }

static function find(const char *name) { return library ? (function)(uintptr_t)dlsym(library, name) : NULL; }

#define HIDDEN __attribute__((visibility("hidden")))

#define FUNCTION(name)                                                                                                 \
    HIDDEN uintptr_t name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) {              \
        function found = find(#name);                                                                                  \
        return found ? found(a, b, c, d, e, f) : FUNCTION_NOT_FOUND;                                                   \
    }
#include "functions.h"

HIDDEN uintptr_t nvmlInit_v2(void) {
    function found = find("nvmlInit_v2");
    int answer = found ? (int)found(0, 0, 0, 0, 0, 0) : FUNCTION_NOT_FOUND;
    initialised = answer == SUCCESS;
    return (uintptr_t)answer;
}

/* nvmlShutdown answers success to go-nvml, which closes the library then and not otherwise. */
HIDDEN uintptr_t nvmlShutdown(void) {
    function found = find("nvmlShutdown");
    shutdown_answer = !initialised ? SUCCESS : found ? (int)found(0, 0, 0, 0, 0, 0) : UNINITIALIZED;
    initialised = 0;
    return SUCCESS;
}

HIDDEN const char *nvmlErrorString(uintptr_t result) {
    function found = find("nvmlErrorString");
    return found ? (const char *)found(result, 0, 0, 0, 0, 0) : "NVML's library is not open";
}

int dra_nvml_processes(void *device, unsigned long long since, void *samples, unsigned int *count) {
    struct { /* nvmlProcessesUtilizationInfo_v1_t */
        unsigned int version, count;
        unsigned long long since;
        void *samples;
    } info = {sizeof info | 1u << 24, *count, since, samples};
    function found = find("nvmlDeviceGetProcessesUtilizationInfo");
    int answer = found ? (int)found((uintptr_t)device, (uintptr_t)&info, 0, 0, 0, 0) : FUNCTION_NOT_FOUND;
    *count = answer == SUCCESS ? info.count : 0;
    return answer;
}
