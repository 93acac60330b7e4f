/* The library whose functions forward.c calls. One call of these three at a time, and of NVML's none meanwhile. */

/* dra_nvml_open opens the library, unless the one of that path is open, and frees the path. It returns why that failed,
 * until the next call of the dynamic linker on this thread; NULL if the library is open. */
const char *dra_nvml_open(char *path);

/* dra_nvml_close closes it. It must not be initialised. */
void dra_nvml_close(void);

/* dra_nvml_shutdown_answer is the nvmlReturn_t of the last nvmlShutdown, of which go-nvml is told that it succeeded. */
int dra_nvml_shutdown_answer(void);

/* dra_nvml_processes reads nvmlDeviceGetProcessesUtilizationInfo, for which go-nvml passes no array: at most *count
 * samples (nvmlProcessUtilizationInfo_v1_t) that are newer than since. It returns the nvmlReturn_t. */
int dra_nvml_processes(void *device, unsigned long long since, void *samples, unsigned int *count);
