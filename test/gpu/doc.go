// Package gpu compares the readings of the sources nvml and dcgm with real NVIDIA GPUs. `make
// test-gpu` runs the trial if nvidia-smi is installed and reports clearly if it is not; `make
// test-gpu RECORD=DIR` also records it.
//
// The trial reads an idle GPU, loads it with two test processes (load/load.c), which take known
// shares of its memory and time, and reads it again. It compares every reading with the output of
// nvidia-smi at the same time, and lists values that nvidia-smi does not print. It checks that the
// load changes utilization, memory, power, energy and PCIe traffic by the expected amounts, that
// the claims of the two processes have the shares of the processes, and that DCGM agrees with NVML.
//
// testdata has recordings of the trial on hardware, which are checked again, and in which tests
// make errors that must be found. What no recording has is untested on hardware: MIG, NVLink, DCGM,
// and the names of the elements in the output of nvidia-smi of other drivers than the recorded
// ones, which are those of published outputs of the drivers 535, 590 and 595. known.py puts loads
// of known size on a GPU.
package gpu
