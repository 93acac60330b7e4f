/*
 * A fake of NVIDIA's libdcgm.so.4: it answers the calls of dcgm_agent.h (of go-dcgm, which this file is compiled
 * against) from the state that a test maps, see state.h. Each conversion into DCGM's units, in values.c, cites what
 * dcgm_fields.h says. What the headers leave open is a guess, and marked so.
 *
 * -DSTATE_PATH is the file of the state. The host engine, embedded or remote, is in here: whatever is written to the state is
 * what it reads next. It reads a watched field at each multiple of the field's interval since it was asked to.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dcgm_agent.h"
#include "dcgm_fields.h"
#include "dcgm_structs.h"
#include "state.h"

enum function {
#define FUNCTION(name) F_##name,
#include "functions.h"
#undef FUNCTION
    NUM_FUNCTIONS
};

_Static_assert((int)NUM_FUNCTIONS <= (int)MAX_FUNCTIONS, "more functions than the state has room for");

static struct state *state;

/* call counts a call, holds it while it is to hang, and returns the failure that it is to have. */
static dcgmReturn_t call(enum function f) {
    volatile int64_t *hang = &state->hang[f];
    __atomic_add_fetch(&state->calls[f], 1, __ATOMIC_RELAXED);
    while (*hang)
        usleep(500);
    return (dcgmReturn_t)state->fail[f];
}

#define ANSWER(f)                                                                                                      \
    do {                                                                                                               \
        dcgmReturn_t answer = call(F_##f);                                                                             \
        if (answer != DCGM_ST_OK)                                                                                      \
            return answer;                                                                                             \
    } while (0)

/* ON answers a call over a connection: one to an engine that is gone "is not valid any longer". */
#define ON(f, handle)                                                                                                  \
    ANSWER(f);                                                                                                         \
    if (state->down || (int64_t)(handle) != state->engine)                                                             \
    return DCGM_ST_CONNECTION_NOT_VALID

static dcgmReturn_t misuse(void) {
    state->misuse++;
    return DCGM_ST_BADPARAM;
}

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

const char *errorString(dcgmReturn_t result) { /* not the vendor's wording */
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "dcgmReturn_t %d", (int)result);
    return text;
}

dcgmReturn_t dcgmInit(void) {
    if (!attach())
        return DCGM_ST_INIT_ERROR;
    ANSWER(dcgmInit);
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmShutdown(void) {
    ANSWER(dcgmShutdown);
    return DCGM_ST_OK;
}

/* forget ends what a connection had asked for: watches and groups are those of the connection. */
static void forget(void) {
    memset(state->groups, 0, sizeof state->groups);
    memset(state->field_groups, 0, sizeof state->field_groups);
}

static dcgmReturn_t join(dcgmHandle_t *handle) {
    if (state->down)
        return DCGM_ST_CONNECTION_NOT_VALID;
    if (state->users++ > 0)
        misuse(); /* the exporter has one connection */
    forget();
    *handle = (dcgmHandle_t)state->engine;
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmStartEmbedded(dcgmOperationMode_t mode, dcgmHandle_t *handle) {
    ANSWER(dcgmStartEmbedded);
    if (mode != DCGM_OPERATION_MODE_AUTO)
        return misuse(); /* the engine is to refresh its values by itself */
    state->embedded = 1;
    state->engine++;
    return join(handle);
}

dcgmReturn_t dcgmStopEmbedded(dcgmHandle_t handle) {
    ON(dcgmStopEmbedded, handle);
    state->embedded = 0;
    state->users--;
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmConnect_v2(const char *ip, dcgmConnectV2Params_t *params, dcgmHandle_t *handle) {
    ANSWER(dcgmConnect_v2);
    if (params->version != dcgmConnectV2Params_version || (ip[0] == '/') != (params->addressIsUnixSocket != 0))
        return misuse();
    return join(handle);
}

dcgmReturn_t dcgmConnect_v3(const char *url, dcgmConnectV3Params_t *params, dcgmHandle_t *handle) {
    ANSWER(dcgmConnect_v3);
    if (params->version != dcgmConnectV3Params_version || !strstr(url, "://"))
        return misuse();
    return join(handle);
}

dcgmReturn_t dcgmDisconnect(dcgmHandle_t handle) {
    ANSWER(dcgmDisconnect);
    state->users--;
    if (state->down || (int64_t)handle != state->engine)
        return DCGM_ST_CONNECTION_NOT_VALID; /* a guess: the header does not say */
    forget();
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmGetEntityGroupEntities(dcgmHandle_t handle, dcgm_field_entity_group_t kind, dcgm_field_eid_t *entities, int *count, unsigned int flags) {
    ON(dcgmGetEntityGroupEntities, handle);
    if (kind != DCGM_FE_GPU || *count < state->gpus || flags != 0)
        return misuse();
    for (int i = 0; i < state->gpus; i++)
        entities[i] = (dcgm_field_eid_t)i;
    *count = (int)state->gpus;
    return DCGM_ST_OK;
}

/* Entities of a GPU's instances are numbered by their positions (a guess, and of no consequence). */
static unsigned int instance_id(int gpu, int i) { return (unsigned int)(gpu * MAX_INSTANCES + i); }
static unsigned int compute_id(int gpu, int i, int compute) { return instance_id(gpu, i) * 8 + (unsigned int)compute; }

static void add(dcgmMigHierarchy_v2 *h, int gpu, int i, int compute) {
    const struct instance *m = &state->gpu[gpu].instances[i];
    dcgmMigHierarchyInfo_v2 *e = &h->entityList[h->count++];
    memset(e, 0, sizeof *e);
    if (compute < 0) {
        e->entity = (dcgmGroupEntityPair_t){DCGM_FE_GPU_I, instance_id(gpu, i)};
        e->parent = (dcgmGroupEntityPair_t){DCGM_FE_GPU, (dcgm_field_eid_t)gpu};
    } else {
        e->entity = (dcgmGroupEntityPair_t){DCGM_FE_GPU_CI, compute_id(gpu, i, compute)};
        e->parent = (dcgmGroupEntityPair_t){DCGM_FE_GPU_I, instance_id(gpu, i)};
    }
    strcpy(e->info.gpuUuid, state->gpu[gpu].uuid);
    e->info.nvmlGpuIndex = (unsigned int)gpu;
    e->info.nvmlInstanceId = (unsigned int)m->gpu_instance;
    e->info.nvmlComputeInstanceId = (unsigned int)compute; /* "-1 for GPU Instance and GPU entities" */
    e->info.nvmlMigProfileId = (unsigned int)m->profile;
}

dcgmReturn_t dcgmGetGpuInstanceHierarchy(dcgmHandle_t handle, dcgmMigHierarchy_v2 *hierarchy) {
    ON(dcgmGetGpuInstanceHierarchy, handle);
    if (hierarchy->version != dcgmMigHierarchy_version2)
        return DCGM_ST_VER_MISMATCH;
    hierarchy->count = 0;
    for (int gpu = 0; gpu < state->gpus; gpu++)
        for (int i = 0; i < MAX_INSTANCES; i++) {
            const struct instance *m = &state->gpu[gpu].instances[i];
            if (!state->gpu[gpu].mig || !m->present)
                continue;
            for (int compute = -1; compute < m->compute_instances; compute++)
                add(hierarchy, gpu, i, compute);
        }
    return DCGM_ST_OK;
}

#define LOOKUP(table, number)                                                                                          \
    ((number) >= 1 && (number) <= MAX_GROUPS && state->table[(number) - 1].used ? &state->table[(number) - 1] : NULL)

dcgmReturn_t dcgmGroupCreate(dcgmHandle_t handle, dcgmGroupType_t type, const char *name, dcgmGpuGrp_t *group) {
    (void)name;
    ON(dcgmGroupCreate, handle);
    for (int i = 0; i < MAX_GROUPS && type == DCGM_GROUP_EMPTY; i++)
        if (!state->groups[i].used) {
            state->groups[i] = (struct group){.used = 1};
            *group = (dcgmGpuGrp_t)i + 1;
            return DCGM_ST_OK;
        }
    return misuse();
}

dcgmReturn_t dcgmGroupAddEntity(dcgmHandle_t handle, dcgmGpuGrp_t number, dcgm_field_entity_group_t kind, dcgm_field_eid_t id) {
    ON(dcgmGroupAddEntity, handle);
    struct group *g = LOOKUP(groups, number);
    if (!g || g->count == MAX_ENTITIES)
        return misuse();
    for (int i = 0; i < g->count; i++)
        if (g->kinds[i] == kind && g->ids[i] == id)
            return misuse(); /* "if entity was already in the group" */
    g->kinds[g->count] = kind;
    g->ids[g->count++] = id;
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmGroupDestroy(dcgmHandle_t handle, dcgmGpuGrp_t number) {
    ON(dcgmGroupDestroy, handle);
    struct group *g = LOOKUP(groups, number);
    if (!g)
        return misuse();
    g->used = 0;
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmFieldGroupCreate(dcgmHandle_t handle, int count, const unsigned short *fields, const char *name, dcgmFieldGrp_t *number) {
    (void)name;
    ON(dcgmFieldGroupCreate, handle);
    for (int i = 0; i < count; i++)
        if (state->early && fields[i] >= DCGM_FI_DEV_MEMORY_UNREPAIRABLE)
            return DCGM_ST_UNKNOWN_FIELD;
    for (int i = 0; i < MAX_GROUPS && count <= MAX_FIELDS; i++)
        if (!state->field_groups[i].used) {
            struct field_group *g = &state->field_groups[i];
            *g = (struct field_group){.used = 1, .count = count};
            for (int j = 0; j < count; j++)
                g->fields[j] = fields[j];
            *number = (dcgmFieldGrp_t)i + 1;
            return DCGM_ST_OK;
        }
    return misuse();
}

dcgmReturn_t dcgmFieldGroupDestroy(dcgmHandle_t handle, dcgmFieldGrp_t number) {
    ON(dcgmFieldGroupDestroy, handle);
    struct field_group *g = LOOKUP(field_groups, number);
    if (!g || g->watched)
        return misuse();
    g->used = 0;
    return DCGM_ST_OK;
}

/* updateFreq "in usec", maxKeepAge "in seconds", maxKeepSamples "0=no limit" */
dcgmReturn_t dcgmWatchFields(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t number, long long interval, double age, int samples) {
    ON(dcgmWatchFields, handle);
    struct field_group *g = LOOKUP(field_groups, number);
    const struct group *of = LOOKUP(groups, group);
    if (!g || !of || g->watched || samples != 0 || age < 2 * (double)interval / 1e6)
        return misuse();
    for (int i = 0; i < g->count; i++) {
        if (g->fields[i] >= DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO && g->fields[i] < 1100 && state->profiling)
            return (dcgmReturn_t)state->profiling;
        if (g->fields[i] == DCGM_FI_PROF_FP64_UTIL_RATIO && state->pipes)
            return (dcgmReturn_t)state->pipes;
    }
    g->watched = 1;
    g->group = (int64_t)group;
    g->begun = state->time;
    g->interval = (double)interval / 1e6;
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmUnwatchFields(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t number) {
    ON(dcgmUnwatchFields, handle);
    struct field_group *g = LOOKUP(field_groups, number);
    if (!g || g->group != (int64_t)group)
        return misuse();
    g->watched = 0;
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmUpdateAllFields(dcgmHandle_t handle, int wait) {
    (void)wait;
    ON(dcgmUpdateAllFields, handle);
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmHealthSet(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmHealthSystems_t systems) {
    ON(dcgmHealthSet, handle);
    const struct group *of = LOOKUP(groups, group);
    if (!of || systems != DCGM_HEALTH_WATCH_ALL)
        return misuse();
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmHealthCheck(dcgmHandle_t handle, dcgmGpuGrp_t number, dcgmHealthResponse_t *response) {
    ON(dcgmHealthCheck, handle);
    struct group *g = LOOKUP(groups, number);
    if (!g || response->version != dcgmHealthResponse_version5)
        return misuse();
    response->overallHealth = DCGM_HEALTH_RESULT_PASS;
    response->incidentCount = 0;
    for (int i = 0; i < g->count; i++) {
        int64_t health = state->gpu[g->ids[i]].health;
        if (health == DCGM_HEALTH_RESULT_PASS)
            continue;
        dcgmIncidentInfo_t *incident = &response->incidents[response->incidentCount++];
        memset(incident, 0, sizeof *incident);
        incident->system = DCGM_HEALTH_WATCH_MEM;
        incident->health = (dcgmHealthWatchResults_t)health;
        incident->entityInfo = (dcgmGroupEntityPair_t){DCGM_FE_GPU, (dcgm_field_eid_t)g->ids[i]};
        snprintf(incident->error.msg, sizeof incident->error.msg, "the fake says %d", (int)health);
        response->overallHealth = DCGM_HEALTH_RESULT_FAIL;
    }
    return DCGM_ST_OK;
}

#include "values.c"
