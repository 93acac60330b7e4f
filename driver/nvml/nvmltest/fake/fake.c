/*
 * A fake of NVIDIA's libnvidia-ml.so.1: it answers the calls of nvml.h (of go-nvml, which this file is compiled
 * against) from the state that a test maps, see state.h. Each conversion into NVML's units cites what nvml.h says. What
 * the header leaves open is a guess, and marked so.
 *
 * -DSTATE_PATH is the file of the state, -DOLD makes the library of an old driver, which lacks functions, and
 * -DDRIVER_VERSION that of another driver, which fits it where the first one answers NVML_ERROR_LIB_RM_VERSION_MISMATCH.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"
#include "state.h"

enum function {
#define FUNCTION(name) F_##name,
#include "functions.h"
#undef FUNCTION
    NUM_FUNCTIONS
};

_Static_assert((int)NUM_FUNCTIONS <= (int)MAX_FUNCTIONS, "more functions than the state has room for");

static struct state *state;
static int files[MAX_GPUS + 1];

static int64_t processor_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* spend takes that much processor time, as NVIDIA's driver does. */
static void spend(int64_t nanoseconds) {
    if (nanoseconds == 0)
        return;
    for (int64_t end = processor_time() + nanoseconds; processor_time() < end;)
        ;
}

/* call counts a call, holds it while it is to hang, and returns the failure that it is to have. index: a GPU, or MAX_GPUS. */
static nvmlReturn_t call(enum function f, int index) {
    volatile int64_t *hang = &state->hang[f][index];
    __atomic_add_fetch(&state->calls[f], 1, __ATOMIC_RELAXED);
    while (*hang)
        usleep(500);
    spend(state->cost[f]);
    if (state->fail[f][index])
        return (nvmlReturn_t)state->fail[f][index];
    if (state->users == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (index < MAX_GPUS && state->gpu[index].lost)
        return NVML_ERROR_GPU_IS_LOST;
    return NVML_SUCCESS;
}

#define ANSWER(f, index)                                                                                               \
    do {                                                                                                               \
        nvmlReturn_t answer = call(F_##f, index);                                                                      \
        if (answer != NVML_SUCCESS)                                                                                    \
            return answer;                                                                                             \
    } while (0)

/* A handle is no address but tells the initialisation that it is of, the GPU, and the MIG device plus 1. */
static nvmlDevice_t handle(int gpu, int instance) {
    nvmlDevice_t d;
    d.handle = (void *)(uintptr_t)((uint64_t)state->generation << 16 | (uint64_t)gpu << 8 | (uint64_t)(instance + 1));
    return d;
}

static int gpu_of(nvmlDevice_t d) { return (int)((uintptr_t)d.handle >> 8 & 0xff); }
static int instance_of(nvmlDevice_t d) { return (int)((uintptr_t)d.handle & 0xff) - 1; }
static int stale(nvmlDevice_t d) {
    if ((int64_t)((uintptr_t)d.handle >> 16) == state->generation && gpu_of(d) < state->gpus)
        return 0;
    __atomic_add_fetch(&state->misuse, 1, __ATOMIC_RELAXED);
    return 1;
}

/* OF answers a call on a GPU, or where mig is set, on a MIG device too. */
#define OF(f, d, mig)                                                                                                  \
    if (stale(d) || (!(mig) && instance_of(d) >= 0))                                                                   \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                            \
    struct gpu *g = &state->gpu[gpu_of(d)];                                                                            \
    (void)g;                                                                                                           \
    ANSWER(f, gpu_of(d))

#define SUPPORTED(value)                                                                                               \
    if (isnan(value))                                                                                                  \
    return NVML_ERROR_NOT_SUPPORTED

static int attach(void) {
    if (state)
        return 1;
    int file = open(STATE_PATH, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return 0;
    void *memory = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return 0;
    struct state *s = memory;
    if (s->magic != STATE_MAGIC || s->size != sizeof(struct state)) {
        fprintf(stderr, "the fake's state has %llu bytes, and not %zu\n", (unsigned long long)s->size, sizeof(struct state));
        return 0;
    }
    state = s;
    return 1;
}

nvmlReturn_t nvmlInit_v2(void) {
    if (!attach())
        return NVML_ERROR_UNKNOWN;
    __atomic_add_fetch(&state->users, 1, __ATOMIC_RELAXED); /* call answers UNINITIALIZED without */
    nvmlReturn_t answer = call(F_nvmlInit_v2, MAX_GPUS);
    if (answer == NVML_SUCCESS)
        answer = (nvmlReturn_t)state->init;
#ifdef DRIVER_VERSION
    if (answer == NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        answer = NVML_SUCCESS;
#endif
    if (answer != NVML_SUCCESS) {
        __atomic_sub_fetch(&state->users, 1, __ATOMIC_RELAXED);
        return answer;
    }
    if (state->users > 1)
        return NVML_SUCCESS;
    state->generation++;
    for (int i = 0; i < state->gpus; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/nvidia%lld", state->files, (long long)state->gpu[i].minor);
        if (files[i] > 0)
            close(files[i]);
        files[i] = open(path, O_RDWR | O_CLOEXEC);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
    ANSWER(nvmlShutdown, MAX_GPUS);
    if (__atomic_sub_fetch(&state->users, 1, __ATOMIC_RELAXED) > 0)
        return NVML_SUCCESS;
    for (int i = 0; i < MAX_GPUS; i++)
        if (files[i] > 0) {
            close(files[i]);
            files[i] = 0;
        }
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) { /* not the vendor's wording */
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "nvmlReturn_t %d", (int)result);
    return text;
}

__attribute__((destructor)) static void unload(void) { /* as the end of a process does */
    for (int i = 0; i < MAX_GPUS; i++)
        if (files[i] > 0)
            close(files[i]);
}

static nvmlReturn_t copy(char *to, unsigned int length, const char *from) {
    if (strlen(from) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    ANSWER(nvmlSystemGetDriverVersion, MAX_GPUS);
#ifdef DRIVER_VERSION
    return copy(version, length, DRIVER_VERSION);
#else
    return copy(version, length, state->driver_version);
#endif
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    ANSWER(nvmlDeviceGetCount_v2, MAX_GPUS);
    *count = (unsigned int)state->gpus;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (index >= state->gpus)
        return NVML_ERROR_INVALID_ARGUMENT;
    ANSWER(nvmlDeviceGetHandleByIndex_v2, (int)index);
    *device = handle((int)index, -1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    OF(nvmlDeviceGetUUID, device, 1);
    return copy(uuid, length, instance_of(device) < 0 ? g->uuid : g->instances[instance_of(device)].uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    OF(nvmlDeviceGetName, device, 1);
    return copy(name, length, instance_of(device) < 0 ? g->name : g->instances[instance_of(device)].name);
}

/* "CUDA driver version by calling cuDriverGetVersion()": 1000 * major + 10 * minor */
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ANSWER(nvmlSystemGetCudaDriverVersion_v2, MAX_GPUS);
    *version = (int)state->cuda_version;
    return NVML_SUCCESS;
}

/* "the serial number tag that is physically attached to the board": "for all products with an inforom" */
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    OF(nvmlDeviceGetSerial, device, 0);
    return g->serial[0] ? copy(serial, length, g->serial) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    OF(nvmlDeviceGetVbiosVersion, device, 0);
    return copy(version, length, g->vbios);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    OF(nvmlDeviceGetMinorNumber, device, 0);
    *minor = (unsigned int)g->minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    OF(nvmlDeviceGetPciInfo_v3, device, 0);
    memset(pci, 0, sizeof *pci);
    pci->domain = (unsigned int)g->pci_domain;
    pci->bus = (unsigned int)g->pci_bus;
    pci->device = (unsigned int)g->pci_device;
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, pci->domain, pci->bus, pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, pci->domain & 0xffff, pci->bus, pci->device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    OF(nvmlDeviceGetMigMode, device, 0);
    if (g->mig_max == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = g->mig ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    OF(nvmlDeviceGetMaxMigDeviceCount, device, 0);
    *count = (unsigned int)g->mig_max;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    OF(nvmlDeviceGetMigDeviceHandleByIndex, device, 0);
    if (index >= (unsigned int)g->mig_max)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!g->mig || !g->instances[index].present)
        return NVML_ERROR_NOT_FOUND;
    *mig = handle(gpu_of(device), (int)index);
    return NVML_SUCCESS;
}

/* ON_INSTANCE answers a call on a MIG device alone; one that was destroyed is gone. */
#define ON_INSTANCE(f, d)                                                                                              \
    OF(f, d, 1);                                                                                                       \
    if (instance_of(d) < 0)                                                                                            \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                            \
    struct instance *m = &g->instances[instance_of(d)];                                                                \
    if (!m->present)                                                                                                   \
    return NVML_ERROR_NOT_FOUND /* a guess: the header does not say */

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    ON_INSTANCE(nvmlDeviceGetGpuInstanceId, device);
    *id = (unsigned int)m->gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    ON_INSTANCE(nvmlDeviceGetComputeInstanceId, device);
    *id = (unsigned int)m->compute_instance;
    return NVML_SUCCESS;
}

static struct instance *gpu_instance(struct gpu *g, int64_t id) {
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (g->mig && g->instances[i].present && g->instances[i].gpu_instance == id)
            return &g->instances[i];
    return NULL;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    OF(nvmlDeviceGetGpuInstanceById, device, 0);
    struct instance *m = gpu_instance(g, id);
    if (!m)
        return NVML_ERROR_NOT_FOUND;
    instance->handle = (void *)handle(gpu_of(device), (int)(m - g->instances)).handle;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    nvmlDevice_t device = {(void *)instance.handle};
    ON_INSTANCE(nvmlGpuInstanceGetInfo, device);
    info->device = handle(gpu_of(device), -1);
    info->id = (unsigned int)m->gpu_instance;
    info->profileId = (unsigned int)m->profile;
    info->placement.start = (unsigned int)m->start;
    info->placement.size = (unsigned int)m->size;
    return NVML_SUCCESS;
}

/* nvmlMemory_v2_t: total, reserved, free, used in bytes; used is what is allocated, without what is reserved. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    OF(nvmlDeviceGetMemoryInfo_v2, device, 1);
    double total = g->memory_total, reserved = g->memory_reserved, used = g->memory_used;
    if (instance_of(device) >= 0) {
        struct instance *m = &g->instances[instance_of(device)];
        total = m->memory_total, reserved = m->memory_reserved, used = m->memory_used;
    }
    SUPPORTED(total);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = (unsigned long long)total;
    memory->reserved = (unsigned long long)reserved;
    memory->used = (unsigned long long)used;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

/* nvmlUtilization_t: percent of time; not supported on MIG-enabled GPUs. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    OF(nvmlDeviceGetUtilizationRates, device, 0);
    SUPPORTED(g->utilization);
    if (g->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    utilization->gpu = (unsigned int)lround(g->utilization * 100);
    utilization->memory = (unsigned int)lround(g->memory_utilization * 100);
    return NVML_SUCCESS;
}

/* nvmlDeviceGet{Encoder,Decoder,Jpg,Ofa}Utilization: a percentage (a guess: the header says "utilization"), and the sampling
 * period in microseconds; not supported on MIG-enabled GPUs. */
#define ENGINE(f, field)                                                                                               \
    nvmlReturn_t f(nvmlDevice_t device, unsigned int *utilization, unsigned int *period) {                             \
        OF(f, device, 0);                                                                                              \
        SUPPORTED(g->field);                                                                                           \
        if (g->mig)                                                                                                    \
            return NVML_ERROR_NOT_SUPPORTED;                                                                           \
        *utilization = (unsigned int)lround(g->field * 100);                                                           \
        *period = 167000;                                                                                              \
        return NVML_SUCCESS;                                                                                           \
    }

ENGINE(nvmlDeviceGetEncoderUtilization, encoder)
ENGINE(nvmlDeviceGetDecoderUtilization, decoder)
#ifndef OLD
ENGINE(nvmlDeviceGetJpgUtilization, jpeg)
ENGINE(nvmlDeviceGetOfaUtilization, ofa)
#endif

/* "power usage for this GPU in milliwatts" */
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power) {
    OF(nvmlDeviceGetPowerUsage, device, 0);
    SUPPORTED(g->power);
    *power = (unsigned int)lround(g->power * 1000);
    return NVML_SUCCESS;
}

/* "total energy consumption for this GPU in millijoules (mJ) since the driver was last reloaded" */
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy) {
    OF(nvmlDeviceGetTotalEnergyConsumption, device, 0);
    SUPPORTED(g->energy);
    *energy = (unsigned long long)llround(g->energy * 1000);
    return NVML_SUCCESS;
}

/* "temperature readings (in degrees C)" */
#ifndef OLD
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    OF(nvmlDeviceGetTemperatureV, device, 0);
    SUPPORTED(g->temperature);
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (temperature->sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    temperature->temperature = (int)lround(g->temperature);
    return NVML_SUCCESS;
}
#endif

/* "clock speed in MHz" */
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
    OF(nvmlDeviceGetClockInfo, device, 0);
    double hertz = type == NVML_CLOCK_GRAPHICS ? g->clock_graphics
                 : type == NVML_CLOCK_SM       ? g->clock_sm
                 : type == NVML_CLOCK_MEM      ? g->clock_memory
                 : type == NVML_CLOCK_VIDEO    ? g->clock_video
                                               : (double)NAN;
    SUPPORTED(hertz);
    *clock = (unsigned int)lround(hertz / 1e6);
    return NVML_SUCCESS;
}

#include "condition.c"
#include "fields.c"
#include "events.c"
