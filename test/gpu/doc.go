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
// The trial was never run on hardware, since no machine with a GPU was available. CI runs it on the
// fake of NVML, and the load on a fake of CUDA. The following is therefore untested: the kernel of
// the load, whose PTX was compared with the output of LLVM's NVPTX back end for the same function;
// the load's calls, except their order; nvidia-smi's options and the names of the elements in its
// output, which are those of published outputs of the drivers 535, 580, 590 and 595; and the
// tolerances of the comparisons, which are estimates.
package gpu
