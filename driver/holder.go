package driver

// PodProcesses has the processes of a pod that holds devices.
type PodProcesses struct {
	// Devices are those of the requested devices that the pod holds.
	Devices []Hardware
	// PIDs are the processes that the last search found, ascending, as numbered in the procfs that the
	// source reads. A process may have ended since, and its PID may have been reused.
	PIDs []int
}
