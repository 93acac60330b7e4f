/*
 * The state of the fake of libdcgm.so.4: a file that the test and the double map, so that the test says at any time what
 * the host engine knows. The struct State of ../state.go is the same, field by field; both are made of fields of 8 bytes
 * (and arrays of bytes), so that neither compiler pads them.
 *
 * Values are in base units: watts, joules, bytes, hertz, degrees Celsius, seconds, shares of 1. The fake turns them into
 * DCGM's. NaN is what the device does not support.
 */
#include <stdint.h>

enum { MAX_GPUS = 32, MAX_INSTANCES = 8, MAX_EVENTS = 64, MAX_FUNCTIONS = 32, MAX_GROUPS = 16, MAX_ENTITIES = 160, MAX_FIELDS = 64 };

#define STATE_MAGIC 0x4443474d646f7562ULL

struct work { /* what GPUs and GPU instances both have */
    double graphics, sm, occupancy, tensor, dram; /* shares of time: the profiling metrics */
    double fp64, fp32, fp16, integer;             /* likewise */
    double memory_total, memory_used, memory_reserved; /* bytes */
};

struct instance { /* a GPU instance */
    int64_t present, gpu_instance, compute_instances, profile;
    struct work work;
    char name[64]; /* of its profile */
};

struct condition { /* in which the hardware is: flags are 0 or 1 */
    double remap_pending, remap_failed, retirement_pending, sram_threshold, unrepairable;
    double recovery_action;                          /* nvmlDeviceGpuRecoveryAction_t */
    double lifetime_corrected, lifetime_uncorrected; /* ECC errors over the GPU's lifetime */
    double limit_enforced, limit_default, limit_min, limit_max; /* watts */
    double performance_state, throttling;                       /* throttling: DCGM_CLOCKS_EVENT_REASON_* */
    double link_width, link_width_max, link_generation, link_generation_max;
    double clock_sm_max, clock_memory_max; /* hertz */
    double nvlink_crc, nvlink_replay, nvlink_recovery, nvlink5_recovery;
    double fabric_status, fabric_summary; /* as DCGM has them */
    double margin, fan;                   /* degrees Celsius; share of 1 */
};

struct gpu {
    int64_t lost;    /* every value has the status DCGM_ST_GPU_IS_LOST */
    int64_t stalled; /* the engine does not refresh its values */
    int64_t mig, health, pci_bus; /* health: a dcgmHealthWatchResults_t */
    struct work work;
    double utilization, memory_utilization, encoder, decoder; /* by percentages of NVML */
    double power, energy;
    double temperature, memory_temperature;
    double clock_sm, clock_memory, clock_video;
    double pcie_transmit_rate, pcie_receive_rate, nvlink_transmit_rate, nvlink_receive_rate; /* bytes per second */
    double throttled_power, throttled_thermal, throttled_sync_boost, throttled_board_limit, throttled_reliability; /* seconds */
    double ecc_corrected, ecc_uncorrected, pcie_replays, remapped_corrected, remapped_uncorrected, retired_sbe, retired_dbe;
    struct condition condition;
    struct instance instances[MAX_INSTANCES];
    char uuid[64], name[64], serial[32], vbios[32];
};

struct event {
    int64_t gpu, instance, compute, xid; /* positions; -1: not given */
    double time;
};

struct group {
    int64_t used, count;
    int64_t kinds[MAX_ENTITIES], ids[MAX_ENTITIES]; /* dcgm_field_entity_group_t and number */
};

struct field_group {
    int64_t used, count;
    int64_t fields[MAX_FIELDS];
    int64_t watched, group; /* by the group of that number */
    double begun, interval;
};

struct state {
    uint64_t magic, size;
    int64_t down;       /* no engine listens */
    int64_t engine;     /* counts the engine's starts: handles of an earlier one are not valid */
    int64_t early;      /* an earlier DCGM 4, without the numbers from 1507 on */
    int64_t profiling;  /* a dcgmReturn_t: what asking for profiling metrics is answered; 0: they are there */
    int64_t pipes;      /* likewise those of the pipes of multiprocessors */
    int64_t users;      /* connections */
    int64_t misuse;     /* calls that the header forbids */
    int64_t gpus;
    int64_t cuda_version; /* as DCGM_FI_CUDA_DRIVER_VERSION has it */
    int64_t values;                       /* delivered */
    int64_t embedded;                     /* an engine runs in this process */
    int64_t events_written;
    double time;                          /* now, in seconds since 1970, by the engine's clock */
    uint64_t calls[MAX_FUNCTIONS];
    int64_t fail[MAX_FUNCTIONS]; /* dcgmReturn_t that a call answers */
    int64_t hang[MAX_FUNCTIONS]; /* the call returns when it is 0 again */
    struct event events[MAX_EVENTS];
    struct group groups[MAX_GROUPS];
    struct field_group field_groups[MAX_GROUPS];
    struct gpu gpu[MAX_GPUS];
    char driver_version[64];
};
