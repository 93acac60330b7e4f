// Package gpu holds what the sources nvml and dcgm read against real NVIDIA GPUs. `make test-gpu` runs the trial where nvidia-smi
// is, and says so loudly where it is not; `make test-gpu RECORD=DIR` records it as well.
//
// The trial looks at an idle GPU, burdens it with two processes of our own (load/load.c), which take known shares of its memory
// and time, and looks again. It compares every value that was read with what nvidia-smi prints at the same time, and lists what
// nvidia-smi does not print; it checks that the load moved utilization, memory, power, energy and PCIe traffic by as much as it
// must; that the claims of the two processes have the parts that these took; and that DCGM says what NVML says.
//
// No machine with a GPU was at hand when this was written: the trial was never run on hardware. It is run in CI on the double of
// NVML, and the load on a double of CUDA. Never run were, therefore: the kernel of the load, whose PTX was checked against what
// LLVM's NVPTX back end writes for the same function; the load's calls, but for their order; nvidia-smi's options and the names
// of the elements that it prints, which are those of published outputs of the drivers 535 and 590; and the margins of the
// comparisons, which are estimates.
package gpu
