/* The condition of the hardware; part of fake.c. Libraries of old drivers have none of these functions. */

#ifndef OLD

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
