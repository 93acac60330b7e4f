/* Field values and processes; part of fake.c. */

/* count fills a field that counts; its type is a guess: the header does not say. */
static void count(nvmlFieldValue_t *v, double value) {
    if (isnan(value)) {
        v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        return;
    }
    v->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    v->value.ullVal = (unsigned long long)value;
}

/* throughput is "in KiB"; "a scopeId of UINT_MAX returns aggregate value summed up across all links" */
static void throughput(nvmlFieldValue_t *v, double bytes) {
    if (v->scopeId != 0xffffffffu)
        v->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;
    else
        count(v, bytes / 1024);
}

/* narrow is a count that may have 32 bits, and wraps: "Value can be wrapped." */
static void narrow(nvmlFieldValue_t *v, double bytes, int64_t is_narrow) {
    count(v, bytes);
    if (is_narrow && v->nvmlReturn == NVML_SUCCESS) {
        v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        v->value.ullVal = 0;
        v->value.uiVal = (unsigned int)(uint64_t)bytes;
    }
}

/* What a GPU says of each field; numbers.h has the number of each in the branches of the driver. */
static int branch(void) {
#ifdef DRIVER_VERSION
    return atoi(DRIVER_VERSION);
#else
    return atoi(state->driver_version);
#endif
}

/* release is the version of the driver as a number that grows, such as 580.065 of 580.65.06. */
static double release(void) {
#ifdef DRIVER_VERSION
    const char *version = DRIVER_VERSION;
#else
    const char *version = state->driver_version;
#endif
    const char *dot = strchr(version, '.');
    return atoi(version) + (dot ? atoi(dot + 1) / 1000.0 : 0);
}

/* degrees C, an unsigned int whatever its type says: dcgm-exporter, issue 193, has the double of 545 */
#define GPU_MEMORY_TEMP                                                                                                \
    count(v, g->memory_temperature), v->valueType = branch() == 545 ? NVML_VALUE_TYPE_DOUBLE : NVML_VALUE_TYPE_UNSIGNED_INT
#define GPU_NVLINK_THROUGHPUT_DATA_TX throughput(v, g->nvlink_transmit)
#define GPU_NVLINK_THROUGHPUT_DATA_RX throughput(v, g->nvlink_receive)
#define GPU_PCIE_REPLAY_COUNTER count(v, g->pcie_replays)
#define GPU_ECC_SBE_VOL_TOTAL count(v, g->ecc_corrected)
#define GPU_ECC_DBE_VOL_TOTAL count(v, g->ecc_uncorrected)
#define GPU_REMAPPED_COR count(v, g->mig ? (double)NAN : g->remapped_corrected)
#define GPU_REMAPPED_UNC count(v, g->mig ? (double)NAN : g->remapped_uncorrected)
#define GPU_RETIRED_SBE count(v, g->retired_sbe)
#define GPU_RETIRED_DBE count(v, g->retired_dbe)
#define GPU_ECC_SBE_AGG_TOTAL count(v, g->condition.lifetime_corrected)
#define GPU_ECC_DBE_AGG_TOTAL count(v, g->condition.lifetime_uncorrected)
/* "Error Counter total for all Lanes" */
#define GPU_NVLINK_CRC count(v, g->condition.nvlink_crc)
#define GPU_NVLINK_REPLAY count(v, g->condition.nvlink_replay)
#define GPU_NVLINK_RECOVERY count(v, g->condition.nvlink_recovery)
/* UINT_MAX as the scope of all links is a guess: the header says so of throughput alone, and DCGM sums these fields */
#define GPU_NVLINK5_RECOVERY                                                                                           \
    if (g->condition.nvlink5_recovery < 0) /* a driver that refuses the scope */                                       \
        v->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;                                                                   \
    else                                                                                                               \
        throughput(v, g->condition.nvlink5_recovery * 1024)
/* "1=yes 0=no" */
#define GPU_REMAPPED_PENDING count(v, g->mig ? (double)NAN : g->condition.remap_pending)
#define GPU_REMAPPED_FAILURE count(v, g->mig ? (double)NAN : g->condition.remap_failed)
#define GPU_RETIRED_PENDING count(v, g->condition.retirement_pending)
#define GPU_RECOVERY_ACTION narrow(v, g->condition.recovery_action, 1) /* an unsigned int: the mock of k8s-test-infra */
/* "All counters are in nanoseconds" */
#define GPU_PERF_POLICY_POWER count(v, g->throttled_power * 1e9)
#define GPU_PERF_POLICY_THERMAL count(v, g->throttled_thermal * 1e9)
#define GPU_PERF_POLICY_SYNC_BOOST count(v, g->throttled_sync_boost * 1e9)
#define GPU_PERF_POLICY_BOARD_LIMIT count(v, g->throttled_board_limit * 1e9)
#define GPU_PERF_POLICY_RELIABILITY count(v, g->throttled_reliability * 1e9)
#define GPU_CLOCKS_SW_THERM count(v, g->throttled_sw_thermal * 1e9)
#define GPU_CLOCKS_HW_THERM count(v, g->throttled_hw_thermal * 1e9)
#define GPU_CLOCKS_HW_POWER_BRAKE count(v, g->throttled_hw_power_brake * 1e9)
/* a setting that stands at 0, where the GPU has the feature; an unsigned int, as driver 580.159.04 says on an H100 */
#define GPU_PWR_SMOOTHING narrow(v, g->power_smoothing ? 0 : (double)NAN, 1)

static void field(const struct gpu *g, nvmlFieldValue_t *v) {
    double now = release();
#define FIELD(what, number, from, until)                                                                               \
    if (v->fieldId == number && from <= now && now < until) {                                                          \
        GPU_##what;                                                                                                    \
        return;                                                                                                        \
    }
#include "numbers.h"
#undef FIELD
    v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
}

#ifndef OLD
/* "NVML_SUCCESS if any values in values were populated. Note that you must check the nvmlReturn field of each" */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    OF(nvmlDeviceGetFieldValues, device, 0);
    for (int i = 0; i < count; i++) {
        values[i].nvmlReturn = NVML_SUCCESS;
        field(g, &values[i]);
    }
    return NVML_SUCCESS;
}
#endif

/* processes lists those of a GPU or MIG device: usedGpuMemory in bytes, or NVML_VALUE_NOT_AVAILABLE. */
static nvmlReturn_t processes(const struct gpu *g, int instance, int graphics, int mps, unsigned int *count, nvmlProcessInfo_t *infos) {
    unsigned int found = 0, room = *count;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const struct process *p = &g->processes[i];
        if (p->pid == 0 || (p->graphics != 0) != graphics || (mps && !p->mps))
            continue;
        if (instance >= 0 && p->gpu_instance != g->instances[instance].gpu_instance)
            continue;
        if (found < room) {
            infos[found].pid = (unsigned int)p->pid;
            infos[found].usedGpuMemory = isnan(p->memory) ? (unsigned long long)NVML_VALUE_NOT_AVAILABLE : (unsigned long long)p->memory;
            infos[found].gpuInstanceId = infos[found].computeInstanceId = 0xffffffffu;
        }
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    OF(nvmlDeviceGetComputeRunningProcesses_v3, device, 1);
    return processes(g, instance_of(device), 0, 0, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    OF(nvmlDeviceGetGraphicsRunningProcesses_v3, device, 1);
    return processes(g, instance_of(device), 1, 0, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    OF(nvmlDeviceGetMPSComputeRunningProcesses_v3, device, 1);
    return processes(g, instance_of(device), 0, 1, count, infos);
}

/* The driver samples a GPU's utilization each sample_period (0.2 s on an H100 with driver 580.159.04). A sample is all of
 * that time's utilization, and names one process: the one that ran last. Here it is drawn by the processes' shares, from
 * a sequence that fills an interval evenly. */
static double sample_of(const struct gpu *g, uint64_t number, const struct process **ran) {
    double busy = 0, sum = 0, at = (double)(number * 0x9e3779b97f4a7c15ULL >> 11) / (double)(1ULL << 53);
    for (int i = 0; i < MAX_PROCESSES; i++)
        busy += g->processes[i].pid ? g->processes[i].utilization : 0;
    *ran = NULL;
    for (int i = 0; i < MAX_PROCESSES && busy > 0; i++) {
        const struct process *p = &g->processes[i];
        if (p->pid == 0 || p->utilization == 0)
            continue;
        *ran = p;
        if ((sum += p->utilization / busy) > at)
            break;
    }
    return busy;
}

/* utilization returns the mean utilization of each process over the samples after since, and the time of its last one,
 * in microseconds; without since, over the 71 samples that an H100 keeps. It returns how many processes have one. */
static unsigned int utilization(const struct gpu *g, unsigned long long since, double *share, unsigned long long *last) {
    struct timespec now;
    double time = g->process_time;
    if (state->live && clock_gettime(CLOCK_MONOTONIC, &now) == 0)
        time += (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - state->live;
    uint64_t newest = (uint64_t)(time / g->sample_period), samples = 0;
    unsigned int found = 0;
    memset(share, 0, MAX_PROCESSES * sizeof *share);
    for (uint64_t k = newest; k > 0 && (since || samples < 71); k--) {
        unsigned long long at = (unsigned long long)((double)k * g->sample_period * 1e6);
        const struct process *ran;
        if (at <= since)
            break;
        samples++;
        double busy = sample_of(g, k, &ran);
        if (!ran || (double)at < g->busy_since * 1e6)
            continue;
        if (share[ran - g->processes] == 0)
            last[ran - g->processes] = at, found++;
        share[ran - g->processes] += busy;
    }
    for (int i = 0; i < MAX_PROCESSES; i++)
        share[i] /= (double)(samples ? samples : 1);
    return found;
}

/* smUtil is a percentage, timeStamp "CPU Timestamp in microseconds", since 1970; "not currently supported" on MIG-enabled
 * GPUs; one sample of each process "that had some non-zero utilization during the last sample period";
 * NVML_ERROR_NOT_FOUND without any since lastSeen. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen) {
    OF(nvmlDeviceGetProcessUtilization, device, 0);
    double share[MAX_PROCESSES];
    unsigned long long last[MAX_PROCESSES];
    unsigned int room = samples ? *count : 0;
    SUPPORTED(g->utilization);
    if (g->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = utilization(g, last_seen, share, last);
    if (*count == 0)
        return NVML_ERROR_NOT_FOUND;
    if (*count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        if (share[i] == 0)
            continue;
        memset(samples, 0, sizeof *samples);
        samples->pid = (unsigned int)g->processes[i].pid;
        samples->timeStamp = last[i];
        samples++->smUtil = (unsigned int)lround(share[i] * 100);
    }
    return NVML_SUCCESS;
}

#ifndef OLD
/* The same from driver 550 on, the only one on Blackwell: "NVML_ERROR_INSUFFICIENT_SIZE if procUtilArray is NULL or
 * samplesCount is too small", with the count of samples. */
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    OF(nvmlDeviceGetProcessesUtilizationInfo, device, 0);
    double share[MAX_PROCESSES];
    unsigned long long last[MAX_PROCESSES];
    unsigned int room = info->procUtilArray ? info->processSamplesCount : 0, found = 0;
    if (info->version != nvmlProcessesUtilizationInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    info->processSamplesCount = utilization(g, info->lastSeenTimeStamp, share, last);
    if (info->processSamplesCount == 0)
        return NVML_ERROR_NOT_FOUND;
    if (info->processSamplesCount > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        if (share[i] == 0)
            continue;
        memset(&info->procUtilArray[found], 0, sizeof info->procUtilArray[found]);
        info->procUtilArray[found].pid = (unsigned int)g->processes[i].pid;
        info->procUtilArray[found].timeStamp = last[i];
        info->procUtilArray[found++].smUtil = (unsigned int)lround(share[i] * 100);
    }
    return NVML_SUCCESS;
}

#endif
