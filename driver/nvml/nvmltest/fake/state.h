/*
 * The state of the fake of libnvidia-ml.so.1: a file that the test and the double map, so that the test says at any
 * time what the machine is like. The struct State of ../state.go is the same, field by field; both are made of fields
 * of 8 bytes (and arrays of bytes), so that neither compiler pads them.
 *
 * Values are in base units: watts, joules, bytes, hertz, degrees Celsius, seconds, shares of 1. The fake turns them into
 * NVML's. NaN is what the device does not support.
 */
#include <stdint.h>

enum { MAX_GPUS = 64, MAX_INSTANCES = 8, MAX_PROCESSES = 8, MAX_EVENTS = 64, MAX_METRICS = 176, MAX_FUNCTIONS = 72 };

#define STATE_MAGIC 0x4e564d4c646f7562ULL

struct gpm { /* counters, as the hardware has them: each the integral of a share, or of a rate, over time */
    double time; /* seconds */
    double total[MAX_METRICS]; /* by NVML_GPM_METRIC_*; NaN: not supported */
    double rate[MAX_METRICS];  /* how fast each total rises by itself while the machine is live */
};

struct process {
    int64_t pid, graphics; /* pid 0: none */
    int64_t mps;           /* it is a client of MPS */
    double memory;         /* bytes; NaN: NVML_VALUE_NOT_AVAILABLE */
    double utilization;    /* share of the SMs' time */
    int64_t gpu_instance;  /* -1: none */
};

struct instance { /* a MIG device: a compute instance of a GPU instance */
    int64_t present, gpu_instance, compute_instance, profile, start, size;
    double memory_total, memory_reserved, memory_used;
    struct gpm gpm;
    char uuid[64], name[64];
};

struct condition { /* in which the hardware is: flags are 0 or 1; NaN: not supported */
    double remap_pending, remap_failed, retirement_pending, channel_repair, tpc_repair, sram_threshold, unrepairable;
    double recovery_action;                          /* nvmlDeviceGpuRecoveryAction_t */
    double lifetime_corrected, lifetime_uncorrected; /* ECC errors over the GPU's lifetime */
    double limit_enforced, limit_default, limit_min, limit_max; /* watts */
    double performance_state, throttling;                       /* throttling: nvmlClocksEventReason* */
    double link_width, link_width_max, link_generation, link_generation_max;
    double clock_sm_max, clock_memory_max; /* hertz */
    double nvlink_crc, nvlink_replay, nvlink_recovery, nvlink5_recovery;
    double fabric_state, fabric_status, fabric_summary; /* as nvmlGpuFabricInfo_v3_t has them */
    double margin, fan;                                 /* degrees Celsius; share of 1 */
};

struct gpu {
    int64_t lost; /* every call answers NVML_ERROR_GPU_IS_LOST */
    int64_t minor, pci_domain, pci_bus, pci_device, mig, mig_max, gpm_supported;
    int64_t power_smoothing; /* it has the feature, whose settings stand at 0 */
    double power, energy;
    double utilization, memory_utilization, encoder, decoder, jpeg, ofa;
    double memory_total, memory_reserved, memory_used;
    double temperature, memory_temperature;
    double clock_graphics, clock_sm, clock_memory, clock_video;
    double pcie_transmit_rate, pcie_receive_rate;   /* bytes per second */
    double nvlink_transmit, nvlink_receive;         /* bytes */
    double pcie_replays, ecc_corrected, ecc_uncorrected, remapped_corrected, remapped_uncorrected, retired_sbe, retired_dbe;
    double throttled_power, throttled_thermal, throttled_sync_boost, throttled_board_limit, throttled_reliability;
    double throttled_sw_thermal, throttled_hw_thermal, throttled_hw_power_brake; /* seconds */
    struct condition condition;
    double process_time;  /* seconds since 1970 up to which there are samples of processes' utilization */
    double sample_period; /* of these, in seconds */
    double busy_since;    /* seconds since 1970 before which no process ran */
    struct gpm gpm;
    struct process processes[MAX_PROCESSES];
    struct instance instances[MAX_INSTANCES];
    char uuid[64], name[64], serial[32], vbios[32];
};

struct event {
    int64_t gpu, xid, gpu_instance, compute_instance; /* -1: not given */
};

struct state {
    uint64_t magic, size;
    int64_t init;       /* what nvmlInit_v2 answers */
    int64_t users;      /* how often it is initialised and not shut down */
    int64_t generation; /* counts initialisations: handles of an earlier one are stale */
    int64_t misuse;     /* calls with stale handles, or that the header forbids */
    int64_t gpus;
    int64_t cuda_version; /* as nvmlSystemGetCudaDriverVersion_v2 has it */
    int64_t gpm_nan;                    /* the GPM metric that succeeds with NaN; 0: none */
    int64_t gpm_samples, event_sets;    /* allocated and not freed */
    double live; /* CLOCK_MONOTONIC in seconds since which the gpm counters go on by themselves; 0: they do not */
    int64_t events_written, events_read;
    int64_t registered;                 /* GPUs whose events were asked for, as bits */
    uint64_t calls[MAX_FUNCTIONS];
    int64_t fail[MAX_FUNCTIONS][MAX_GPUS + 1]; /* nvmlReturn_t that a call answers; the last: of no GPU */
    int64_t hang[MAX_FUNCTIONS][MAX_GPUS + 1]; /* the call returns when it is 0 again */
    int64_t cost[MAX_FUNCTIONS];               /* nanoseconds of processor time that a call takes */
    struct event events[MAX_EVENTS];
    struct gpu gpu[MAX_GPUS];
    char driver_version[64];
    char files[256]; /* folder of the device files, which are open while NVML is initialised */
};
