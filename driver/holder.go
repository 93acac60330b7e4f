package driver

// PodProcesses are the processes of a pod that holds devices.
type PodProcesses struct {
	// Devices are the devices that the pod holds, of those that were asked for.
	Devices []Hardware
	// Cgroup is the folder of the pod's cgroup; empty: unknown.
	Cgroup string
	// PIDs are the pod's processes, ascending, by their numbers in the procfs that the source reads:
	// those that were found when they were looked for last. Each may have ended, and another process
	// may have its number.
	PIDs []int
}
