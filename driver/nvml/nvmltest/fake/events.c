/* XID events and GPM; part of fake.c. */

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    ANSWER(nvmlEventSetCreate, MAX_GPUS);
    set->handle = (void *)handle(0, -1).handle;
    __atomic_add_fetch(&state->event_sets, 1, __ATOMIC_RELAXED);
    state->registered = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    (void)set;
    ANSWER(nvmlEventSetFree, MAX_GPUS);
    __atomic_sub_fetch(&state->event_sets, 1, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    (void)set;
    OF(nvmlDeviceRegisterEvents, device, 0);
    if (types & nvmlEventTypeXidCriticalError)
        state->registered |= 1LL << gpu_of(device);
    return NVML_SUCCESS;
}

/* eventData: "Xid error for the device"; the instances' ids are 0xFFFFFFFF where it is not attributable to one. */
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout) {
    ANSWER(nvmlEventSetWait_v2, MAX_GPUS);
    nvmlDevice_t now = {(void *)set.handle};
    if (stale(now))
        return NVML_ERROR_INVALID_ARGUMENT;
    while (state->events_read < state->events_written) {
        const struct event *e = &state->events[state->events_read++ % MAX_EVENTS];
        if (!(state->registered >> e->gpu & 1))
            continue;
        data->device = handle((int)e->gpu, -1);
        data->eventType = nvmlEventTypeXidCriticalError;
        data->eventData = (unsigned long long)e->xid;
        data->gpuInstanceId = (unsigned int)e->gpu_instance;
        data->computeInstanceId = (unsigned int)e->compute_instance;
        return NVML_SUCCESS;
    }
    usleep(timeout * 1000);
    return NVML_ERROR_TIMEOUT;
}

#ifndef OLD

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    OF(nvmlGpmQueryDeviceSupport, device, 0);
    support->isSupportedDevice = (unsigned int)g->gpm_supported;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    ANSWER(nvmlGpmSampleAlloc, MAX_GPUS);
    sample->handle = calloc(1, sizeof(struct gpm));
    __atomic_add_fetch(&state->gpm_samples, 1, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    ANSWER(nvmlGpmSampleFree, MAX_GPUS);
    free(sample.handle);
    __atomic_sub_fetch(&state->gpm_samples, 1, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

static void sample_gpm(struct gpm *sample, const struct gpm *of) {
    *sample = *of;
    if (!state->live)
        return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - state->live;
    sample->time += seconds;
    for (int i = 0; i < MAX_METRICS; i++)
        sample->total[i] += of->rate[i] * seconds;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    OF(nvmlGpmSampleGet, device, 1);
    if (!g->gpm_supported)
        return NVML_ERROR_NOT_SUPPORTED;
    sample_gpm((void *)sample.handle, instance_of(device) < 0 ? &g->gpm : &g->instances[instance_of(device)].gpm);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int id, nvmlGpmSample_t sample) {
    OF(nvmlGpmMigSampleGet, device, 0);
    struct instance *m = gpu_instance(g, id);
    if (!g->gpm_supported)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!m)
        return NVML_ERROR_INVALID_ARGUMENT;
    sample_gpm((void *)sample.handle, &m->gpm);
    return NVML_SUCCESS;
}

/* NVML_GPM_METRIC_*: percentages "0.0 - 100.0", and traffic "in MiB/sec", each of the time between the samples, which
 * "should be greater than 100ms" and lies, a guess, between sample1 and sample2. */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get) {
    ANSWER(nvmlGpmMetricsGet, MAX_GPUS);
    const struct gpm *from = (void *)get->sample1.handle, *to = (void *)get->sample2.handle;
    double seconds = to->time - from->time;
    if (get->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!(seconds > 0.1)) {
        state->misuse++;
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned int i = 0; i < get->numMetrics; i++) {
        nvmlGpmMetric_t *m = &get->metrics[i];
        double rate = m->metricId < MAX_METRICS ? (to->total[m->metricId] - from->total[m->metricId]) / seconds : (double)NAN;
        int traffic = m->metricId == NVML_GPM_METRIC_PCIE_TX_PER_SEC || m->metricId == NVML_GPM_METRIC_PCIE_RX_PER_SEC ||
                      m->metricId == NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC || m->metricId == NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC;
        m->nvmlReturn = isnan(rate) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
        m->value = traffic ? rate / (1 << 20) : rate * 100;
        if (state->gpm_nan && m->metricId == state->gpm_nan)
            m->value = (double)NAN;
    }
    return NVML_SUCCESS;
}

#endif
