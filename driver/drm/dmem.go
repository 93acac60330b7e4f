package drm

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// cgroupsAtOnce is the maximum number of cgroups that one sample reads.
const cgroupsAtOnce = 256

// podMemory is the memory of a pod on devices.
type podMemory struct {
	at    time.Time          // when it was read last, or tried
	byPCI map[string]float64 // bytes; nil: the controller is not enabled for pods
}

// readMemory reads the device memory of the machine and of pods, if the kernel has the cgroup
// controller dmem (Linux 6.14; Documentation/admin-guide/cgroup-v2.rst). The memory of a pod is
// attributed to one of its processes on the device.
func (s *Source) readMemory(r *report) error {
	root := filepath.Join(s.Sysfs, "fs", "cgroup")
	used, err := s.readRegions(root, "dmem.current")
	if used == nil {
		clear(s.pods)
		return err
	}
	capacity, failed := s.readRegions(root, "dmem.capacity")
	for d, f := range r.figures {
		f.dmem, f.capacity = valueOf(used, d.hardware.PCI), valueOf(capacity, d.hardware.PCI)
	}
	err = cmp.Or(err, failed, s.readPods(r))
	for d, f := range r.figures {
		for _, i := range f.pods {
			pod := &r.pods[i]
			known := s.pods[pod.Cgroup]
			if known == nil || len(pod.PIDs) == 0 {
				continue
			}
			if has := valueOf(known.byPCI, d.hardware.PCI); has != nil {
				f.podMemory[processOn(f, pod)] = *has
			}
		}
	}
	return err
}

// valueOf returns the value of a key, nil if there is none.
func valueOf(values map[string]float64, key string) *float64 {
	if value, ok := values[key]; ok && key != "" {
		return &value
	}
	return nil
}

// processOn returns a process of the pod: one that uses the device, or else the first.
func processOn(f *figures, pod *driver.PodProcesses) int {
	for _, pid := range pod.PIDs {
		if f.processes[pid] != nil {
			return pid
		}
	}
	return pod.PIDs[0]
}

// readPods reads the cgroups of pods, starting with those that were not read for the longest time.
func (s *Source) readPods(r *report) error {
	folders := make([]string, 0, len(r.pods))
	present := make(map[string]bool, len(r.pods))
	for i := range r.pods {
		if folder := r.pods[i].Cgroup; folder != "" && !present[folder] {
			folders, present[folder] = append(folders, folder), true
		}
	}
	for folder := range s.pods {
		if !present[folder] {
			delete(s.pods, folder)
		}
	}
	at := func(folder string) time.Time {
		if known := s.pods[folder]; known != nil {
			return known.at
		}
		return time.Time{}
	}
	slices.SortStableFunc(folders, func(a, b string) int { return at(a).Compare(at(b)) })
	var failed error
	for _, folder := range folders[:min(len(folders), s.limits.cgroups)] {
		values, err := s.readRegions(folder, "dmem.current")
		failed = cmp.Or(failed, err)
		s.pods[folder] = &podMemory{at: r.at, byPCI: values}
	}
	return failed
}

// readRegions reads a file of the controller. It returns the bytes of memory by PCI address, or nil
// if the file does not exist.
func (s *Source) readRegions(folder, file string) (map[string]float64, error) {
	text, err := sysfs.ReadInto(sysfs.WorkingDir, filepath.Join(folder, file), s.buffer)
	if sysfs.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the device memory of a cgroup: %w", err)
	}
	values, err := parseRegions(text)
	if err != nil {
		err = fmt.Errorf("read the device memory of a cgroup: %w", err)
	}
	return values, err
}

// parseRegions returns the bytes of local memory of each device, by PCI address, from lines such as
// "drm/0000:03:00.0/vram0 8388608"; [driver.Malformed] for those of which one has no number, which
// is an error. It ignores other regions.
func parseRegions(text []byte) (map[string]float64, error) {
	var failed error
	values := map[string]float64{}
	for line := range bytes.Lines(text) {
		region, number, _ := strings.Cut(string(bytes.TrimSpace(line)), " ")
		path, ok := strings.CutPrefix(region, "drm/")
		pci, name, _ := strings.Cut(path, "/")
		if !ok || !strings.HasPrefix(name, "vram") || driver.NormalizePCI(pci) != pci || pci == "" {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 64)
		used, _ := driver.NumberOf(n, err)
		values[pci] += used
		failed = cmp.Or(failed, err)
	}
	return values, failed
}
