// Package gpu holds what source nvml reads against what nvidia-smi prints at the same time, on a machine with an NVIDIA
// GPU. `make test-gpu` runs it, and says so loudly where there is none.
package gpu
