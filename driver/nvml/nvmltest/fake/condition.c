/* The condition of the hardware; part of fake.c. Libraries of old drivers have none of these functions. */

/* NUMBER answers a call that gives an unsigned int, scaled from the state's unit to NVML's. */
#define NUMBER(f, type, field, scale)                                                                                  \
    nvmlReturn_t f(nvmlDevice_t device, type *value) {                                                                 \
        OF(f, device, 0);                                                                                              \
        SUPPORTED(g->condition.field);                                                                                 \
        *value = (type)llround(g->condition.field * (scale));                                                          \
        return NVML_SUCCESS;                                                                                           \
    }

NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, limit_enforced, 1000)          /* "in milliwatts" */
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, limit_default, 1000) /* "in milliwatts" */
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, performance_state, 1)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, link_width, 1)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, link_width_max, 1)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, link_generation, 1)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, link_generation_max, 1)
NUMBER(nvmlDeviceGetFanSpeed, unsigned int, fan, 100) /* "a percentage of the product's maximum noise tolerance fan speed" */

/* "clock speed in MHz" */
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
    OF(nvmlDeviceGetMaxClockInfo, device, 0);
    double hertz = type == NVML_CLOCK_SM  ? g->condition.clock_sm_max
                 : type == NVML_CLOCK_MEM ? g->condition.clock_memory_max
                                          : (double)NAN;
    SUPPORTED(hertz);
    *clock = (unsigned int)lround(hertz / 1e6);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min, unsigned int *max) {
    OF(nvmlDeviceGetPowerManagementLimitConstraints, device, 0);
    SUPPORTED(g->condition.limit_min);
    *min = (unsigned int)lround(g->condition.limit_min * 1000);
    *max = (unsigned int)lround(g->condition.limit_max * 1000);
    return NVML_SUCCESS;
}

#ifndef OLD

NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, throttling, 1)

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin) {
    OF(nvmlDeviceGetMarginTemperature, device, 0);
    SUPPORTED(g->condition.margin);
    if (margin->version != nvmlMarginTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    margin->marginTemperature = (int)lround(g->condition.margin);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) {
    OF(nvmlDeviceGetGpuFabricInfoV, device, 0);
    SUPPORTED(g->condition.fabric_state);
    if (info->version != nvmlGpuFabricInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    info->state = (nvmlGpuFabricState_t)g->condition.fabric_state;
    info->status = (nvmlReturn_t)g->condition.fabric_status;
    info->healthSummary = (unsigned char)g->condition.fabric_summary;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status) {
    OF(nvmlDeviceGetSramEccErrorStatus, device, 0);
    SUPPORTED(g->condition.sram_threshold);
    if (status->version != nvmlEccSramErrorStatus_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    status->bThresholdExceeded = (unsigned int)g->condition.sram_threshold;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status) {
    OF(nvmlDeviceGetRepairStatus, device, 0);
    SUPPORTED(g->condition.channel_repair);
    if (status->version != nvmlRepairStatus_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    status->bChannelRepairPending = (unsigned int)g->condition.channel_repair;
    status->bTpcRepairPending = (unsigned int)g->condition.tpc_repair;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlUnrepairableMemoryStatus_v1_t *status) {
    OF(nvmlDeviceGetUnrepairableMemoryFlag_v1, device, 0);
    SUPPORTED(g->condition.unrepairable);
    status->bUnrepairableMemory = (unsigned int)g->condition.unrepairable;
    return NVML_SUCCESS;
}

#endif
