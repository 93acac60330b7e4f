/* The values of fields; part of fake.c. */

/* whole fills a field of type int64. What a device does not support is DCGM_INT64_NOT_SUPPORTED. */
static void whole(dcgmFieldValue_v1 *v, double value) {
    v->fieldType = DCGM_FT_INT64;
    v->value.i64 = isnan(value) ? DCGM_INT64_NOT_SUPPORTED : (int64_t)llround(value);
}

/* real fills one of type double. */
static void real(dcgmFieldValue_v1 *v, double value) {
    v->fieldType = DCGM_FT_DOUBLE;
    v->value.dbl = isnan(value) ? DCGM_FP64_NOT_SUPPORTED : value;
}

/* work fills the fields that GPUs and GPU instances have: ratios (dcgm_fields.h: "Ratio of time", "ratio of cycles", "ratio of
 * number of warps"), of type double; "Frame Buffer in MB", of 1048576 bytes (a guess), of type int64. */
static int work(const struct work *w, dcgmFieldValue_v1 *v) {
    switch (v->fieldId) {
    case DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO: real(v, w->graphics); return 1;
    case DCGM_FI_PROF_SM_UTIL_RATIO: real(v, w->sm); return 1;
    case DCGM_FI_PROF_SM_OCCUPANCY_RATIO: real(v, w->occupancy); return 1;
    case DCGM_FI_PROF_TENSOR_UTIL_RATIO: real(v, w->tensor); return 1;
    case DCGM_FI_PROF_DRAM_UTIL_RATIO: real(v, w->dram); return 1;
    case DCGM_FI_PROF_FP64_UTIL_RATIO: real(v, w->fp64); return 1;
    case DCGM_FI_PROF_FP32_UTIL_RATIO: real(v, w->fp32); return 1;
    case DCGM_FI_PROF_FP16_UTIL_RATIO: real(v, w->fp16); return 1;
    case DCGM_FI_PROF_INT_UTIL_RATIO: real(v, w->integer); return 1;
    case DCGM_FI_DEV_FB_TOTAL: whole(v, w->memory_total / (1 << 20)); return 1;
    case DCGM_FI_DEV_FB_USED: whole(v, w->memory_used / (1 << 20)); return 1;
    case DCGM_FI_DEV_FB_RESERVED: whole(v, w->memory_reserved / (1 << 20)); return 1; /* of an instance: a guess */
    default: return 0;
    }
}

static void gpu_field(const struct gpu *g, dcgmFieldValue_v1 *v) {
    if (work(&g->work, v))
        return;
    switch (v->fieldId) {
    case DCGM_FI_DEV_MIG_MODE: whole(v, (double)g->mig); return; /* "Boolean: 0 is disabled, 1 is enabled" */
    /* "GPU Utilization", "Memory Utilization", "Encoder Utilization": percentages, as NVML has them (a guess: no unit) */
    case DCGM_FI_DEV_GPU_UTIL_RATIO: whole(v, g->mig ? (double)NAN : g->utilization * 100); return;
    case DCGM_FI_DEV_MEM_COPY_UTIL: whole(v, g->mig ? (double)NAN : g->memory_utilization * 100); return;
    case DCGM_FI_DEV_ENC_UTIL: whole(v, g->encoder * 100); return;
    case DCGM_FI_DEV_DEC_UTIL: whole(v, g->decoder * 100); return;
    case DCGM_FI_DEV_BOARD_POWER_WATTS: real(v, g->power); return; /* "in Watts" */
    case DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION: whole(v, g->energy * 1000); return; /* "in mJ since the driver was last reloaded" */
    case DCGM_FI_DEV_GPU_TEMP_CELSIUS: whole(v, g->temperature); return; /* "in degrees C" */
    case DCGM_FI_DEV_MEMORY_TEMP_CELSIUS: whole(v, g->memory_temperature); return; /* no unit but in its name */
    case DCGM_FI_DEV_SM_CLOCK: whole(v, g->clock_sm / 1e6); return; /* MHz is a guess: no unit */
    case DCGM_FI_DEV_MEM_CLOCK: whole(v, g->clock_memory / 1e6); return;
    case DCGM_FI_DEV_VIDEO_CLOCK: whole(v, g->clock_video / 1e6); return;
    case DCGM_FI_DEV_MAX_SM_CLOCK: whole(v, g->condition.clock_sm_max / 1e6); return;
    case DCGM_FI_DEV_MAX_MEM_CLOCK: whole(v, g->condition.clock_memory_max / 1e6); return;
    /* "The number of bytes of active PCIe tx (transmit) data", per second of the interval: DCGM's user guide has a rate */
    case DCGM_FI_PROF_PCIE_TX_BYTES: whole(v, g->pcie_transmit_rate); return;
    case DCGM_FI_PROF_PCIE_RX_BYTES: whole(v, g->pcie_receive_rate); return;
    case DCGM_FI_PROF_NVLINK_TX_BYTES: whole(v, g->nvlink_transmit_rate); return;
    case DCGM_FI_PROF_NVLINK_RX_BYTES: whole(v, g->nvlink_receive_rate); return;
    /* "Power Violation time in ns"; of the last two that is a guess: "Board violation limit." */
    case DCGM_FI_DEV_POWER_VIOLATION: whole(v, g->throttled_power * 1e9); return;
    case DCGM_FI_DEV_THERMAL_VIOLATION: whole(v, g->throttled_thermal * 1e9); return;
    case DCGM_FI_DEV_SYNC_BOOST_VIOLATION: whole(v, g->throttled_sync_boost * 1e9); return;
    case DCGM_FI_DEV_BOARD_LIMIT_VIOLATION: whole(v, g->throttled_board_limit * 1e9); return;
    case DCGM_FI_DEV_RELIABILITY_VIOLATION: whole(v, g->throttled_reliability * 1e9); return;
    case DCGM_FI_DEV_ECC_SBE_VOL_TOTAL: whole(v, g->ecc_corrected); return;
    case DCGM_FI_DEV_ECC_DBE_VOL_TOTAL: whole(v, g->ecc_uncorrected); return;
    case DCGM_FI_DEV_PCIE_REPLAY_TOTAL: whole(v, g->pcie_replays); return;
    case DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL: whole(v, g->remapped_corrected); return;
    case DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL: whole(v, g->remapped_uncorrected); return;
    case DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL: whole(v, g->retired_sbe); return;
    case DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL: whole(v, g->retired_dbe); return;
    case DCGM_FI_DEV_ECC_SBE_AGG_TOTAL: whole(v, g->condition.lifetime_corrected); return;
    case DCGM_FI_DEV_ECC_DBE_AGG_TOTAL: whole(v, g->condition.lifetime_uncorrected); return;
    case DCGM_FI_DEV_ROW_REMAP_PENDING: whole(v, g->condition.remap_pending); return;
    case DCGM_FI_DEV_ROW_REMAP_FAILED: whole(v, g->condition.remap_failed); return;
    case DCGM_FI_DEV_PAGE_RETIRED_PENDING: whole(v, g->condition.retirement_pending); return; /* "1=yes, 0=no" */
    case DCGM_FI_DEV_SRAM_EXCEEDED: whole(v, g->condition.sram_threshold); return;           /* "boolean (1=true)" */
    case DCGM_FI_DEV_MEMORY_UNREPAIRABLE: whole(v, g->condition.unrepairable); return;       /* "1=yes, 0=no" */
    case DCGM_FI_DEV_GPU_RECOVERY_ACTION: whole(v, g->condition.recovery_action); return;
    case DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS: real(v, g->condition.limit_enforced); return;
    case DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS: real(v, g->condition.limit_default); return;
    case DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS: real(v, g->condition.limit_min); return;
    case DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS: real(v, g->condition.limit_max); return;
    case DCGM_FI_DEV_GPU_PSTATE: whole(v, g->condition.performance_state); return; /* "0-15. 0=highest" */
    case DCGM_FI_DEV_CLOCKS_EVENT_REASONS: whole(v, g->condition.throttling); return;
    case DCGM_FI_DEV_PCIE_LINK_WIDTH: whole(v, g->condition.link_width); return;
    case DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH: whole(v, g->condition.link_width_max); return;
    case DCGM_FI_DEV_PCIE_LINK_GEN: whole(v, g->condition.link_generation); return;
    case DCGM_FI_DEV_PCIE_MAX_LINK_GEN: whole(v, g->condition.link_generation_max); return;
    case DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL: whole(v, g->condition.nvlink_crc); return;
    case DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL: whole(v, g->condition.nvlink_replay); return;
    case DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL: whole(v, g->condition.nvlink_recovery); return;
    case DCGM_FI_DEV_NVLINK_RECOVERY_EVENT_TOTAL: whole(v, g->condition.nvlink5_recovery); return; /* "NVLink5+ only" */
    case DCGM_FI_DEV_FABRIC_MANAGER_STATUS: whole(v, g->condition.fabric_status); return;
    case DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY: whole(v, g->condition.fabric_summary); return;
    case DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS: whole(v, g->condition.margin); return;
    case DCGM_FI_DEV_FAN_SPEED: whole(v, g->condition.fan * 100); return;       /* "in percent 0-100 (may exceed 100)" */
    default: whole(v, (double)NAN);
    }
}

static int64_t micros(double time) { return (int64_t)llround(time * 1e6); }

/* fill makes the value of a field of an entity as of a time ("Timestamp in usec since 1970"). */
static void fill(dcgmFieldValue_v1 *v, unsigned short field, int64_t kind, int64_t id, double time) {
    v->version = dcgmFieldValue_version1;
    v->fieldId = field;
    v->status = DCGM_ST_OK;
    v->ts = micros(time);
    int gpu = (int)(kind == DCGM_FE_GPU ? id : id / MAX_INSTANCES);
    if (kind == DCGM_FE_GPU_CI || gpu >= state->gpus) {
        whole(v, (double)NAN);
        return;
    }
    const struct gpu *g = &state->gpu[gpu];
    if (kind == DCGM_FE_GPU)
        gpu_field(g, v);
    else if (!work(&g->instances[id % MAX_INSTANCES].work, v))
        gpu_field(g, v); /* of an instance DCGM tells what it knows of the GPU: dcgm-exporter's issue 353 */
    if (g->lost) {
        v->status = DCGM_ST_GPU_IS_LOST;
        whole(v, (double)NAN);
        v->value.i64 = DCGM_INT64_BLANK;
    }
}

struct buffer {
    dcgmFieldValue_v1 values[1024];
    int count;
};

/* events are values of DCGM_FI_DEV_XID_ERROR, "The value is the specific XID error": one for each event, of the entity that it
 * concerns, as RecordXidForGpu and its like do in NVIDIA's DcgmCacheManager.cpp. */
static void events(struct buffer *b, int64_t kind, int64_t id, long long since) {
    for (int64_t i = 0; i < state->events_written && i < MAX_EVENTS; i++) {
        const struct event *e = &state->events[i];
        int64_t of = e->compute >= 0 ? DCGM_FE_GPU_CI : e->instance >= 0 ? DCGM_FE_GPU_I : DCGM_FE_GPU;
        int64_t entity = e->compute >= 0 ? compute_id((int)e->gpu, (int)e->instance, (int)e->compute)
                       : e->instance >= 0 ? instance_id((int)e->gpu, (int)e->instance)
                                          : e->gpu;
        if (kind != of || id != entity || micros(e->time) < since || b->count == 1024)
            continue;
        dcgmFieldValue_v1 *v = &b->values[b->count++];
        fill(v, DCGM_FI_DEV_XID_ERROR, DCGM_FE_GPU, e->gpu, e->time);
        v->status = DCGM_ST_OK;
        whole(v, (double)e->xid);
    }
}

/* refreshes are the values that the engine read of an entity since a time: at each multiple of the interval. */
static void refreshes(struct buffer *b, const struct field_group *g, int64_t kind, int64_t id, long long since) {
    int gpu = (int)(kind == DCGM_FE_GPU ? id : id / MAX_INSTANCES);
    double newest = g->begun + floor((state->time - g->begun) / g->interval + 1e-6) * g->interval;
    if (state->gpu[gpu].stalled)
        return;
    for (double t = newest - 3 * g->interval; t <= newest; t += g->interval) {
        if (t < g->begun || micros(t) < since)
            continue;
        for (int i = 0; i < g->count && b->count < 1024; i++)
            fill(&b->values[b->count++], (unsigned short)g->fields[i], kind, id, t);
    }
}

/* "nextSinceTimestamp: Timestamp to use for sinceTimestamp on next call" */
dcgmReturn_t dcgmGetValuesSince_v2(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t number, long long since, long long *next,
                                   dcgmFieldValueEntityEnumeration_f callback, void *user) {
    static _Thread_local struct buffer b;
    ON(dcgmGetValuesSince_v2, handle);
    struct group *entities = LOOKUP(groups, group);
    struct field_group *g = LOOKUP(field_groups, number);
    if (!entities || !g || !g->watched || g->group != (int64_t)group || since < 0)
        return misuse();
    *next = since;
    for (int i = 0; i < entities->count; i++) {
        b.count = 0;
        if (g->fields[0] == DCGM_FI_DEV_XID_ERROR)
            events(&b, entities->kinds[i], entities->ids[i], since);
        else
            refreshes(&b, g, entities->kinds[i], entities->ids[i], since);
        for (int j = 0; j < b.count; j++)
            if (b.values[j].ts + 1 > *next)
                *next = b.values[j].ts + 1;
        if (b.count > 0)
            callback((dcgm_field_entity_group_t)entities->kinds[i], (dcgm_field_eid_t)entities->ids[i], b.values, b.count, user);
        state->values += b.count;
    }
    return DCGM_ST_OK;
}

static void string(dcgmFieldValue_v2 *v, const char *text) {
    v->fieldType = DCGM_FT_STRING;
    snprintf(v->value.str, sizeof v->value.str, "%s", text);
}

/* What identifies a GPU; with DCGM_FV_FLAG_LIVE_DATA no watch is needed. */
dcgmReturn_t dcgmEntitiesGetLatestValues(dcgmHandle_t handle, dcgmGroupEntityPair_t entities[], unsigned int entity_count, unsigned short fields[],
                                         unsigned int field_count, unsigned int flags, dcgmFieldValue_v2 values[]) {
    ON(dcgmEntitiesGetLatestValues, handle);
    if (flags != DCGM_FV_FLAG_LIVE_DATA)
        return misuse();
    for (unsigned int i = 0; i < entity_count * field_count; i++) {
        dcgmFieldValue_v2 *v = &values[i];
        int part = entities[i / field_count].entityGroupId == DCGM_FE_GPU_I;
        unsigned int id = entities[i / field_count].entityId, gpu = part ? id / MAX_INSTANCES : id;
        const struct gpu *g = &state->gpu[gpu];
        char address[32];
        memset(v, 0, sizeof *v);
        v->version = dcgmFieldValue_version2;
        v->entityGroupId = entities[i / field_count].entityGroupId;
        v->entityId = entities[i / field_count].entityId;
        v->fieldId = fields[i % field_count];
        switch (v->fieldId) {
        case DCGM_FI_DEV_GPU_UUID: string(v, g->uuid); break;
        case DCGM_FI_DEV_GPU_NAME: /* of an instance its profile's: dcgm-exporter's PopulateMigProfileNames */
            string(v, part ? g->instances[id % MAX_INSTANCES].name : g->name);
            break;
        case DCGM_FI_DEV_BOARD_SERIAL: string(v, g->serial); break;
        case DCGM_FI_DEV_VBIOS_VERSION: string(v, g->vbios); break;
        case DCGM_FI_CUDA_DRIVER_VERSION: /* "CUDA 11.1 = 11100" */
            v->fieldType = DCGM_FT_INT64;
            v->value.i64 = state->cuda_version;
            break;
        case DCGM_FI_SYSTEM_DRIVER_VERSION: string(v, state->driver_version); break;
        case DCGM_FI_DEV_PCI_BUS_ID: /* as nvmlPciInfo_t's busId: eight digits of domain, in upper case */
            snprintf(address, sizeof address, "00000000:%02X:00.0", (unsigned int)g->pci_bus);
            string(v, address);
            break;
        default: string(v, DCGM_STR_NOT_SUPPORTED);
        }
    }
    return DCGM_ST_OK;
}
