package rdma

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// maxPIDs is the maximum number of pods in which one device is searched.
const maxPIDs = 32

// isExclusive reports whether each RDMA device is in one network namespace (`rdma system set netns
// exclusive`), by the module parameter of ib_core (ib_devices_shared_netns in
// drivers/infiniband/core/device.c).
func (s *Source) isExclusive() bool {
	path := filepath.Join(s.Sysfs, "module", "ib_core", "parameters", "netns_mode")
	value, err := s.reader.Value(sysfs.WorkingDir, path)
	return err == nil && (string(value) == "N" || string(value) == "0")
}

// samplePods appends samples of the attached devices that are not visible on the host.
func (s *Source) samplePods(
	samples []driver.Sample, names []string, start time.Time, bad *sysfs.Problems,
) []driver.Sample {
	attachments := s.Attachments()
	taken := map[string]bool{} // the names of devices that were read
	for _, name := range names {
		taken[name] = true
	}
	whole := slowAtOnce
	for i := range attachments {
		a := &attachments[i]
		if a.Hardware.RDMADev == "" && a.Hardware.PCI == "" || shown(samples, &a.Hardware) {
			continue
		}
		for _, pid := range a.PIDs[:min(len(a.PIDs), maxPIDs)] {
			name, dir, err := s.find(pid, &a.Hardware, taken)
			if err != nil {
				bad.Add(fmt.Errorf("find RDMA device %s in a pod: %w", a.Device, err))
			}
			if name == "" {
				continue
			}
			taken[name] = true
			samples = append(samples, s.sampleInPod(dir, name, a, start, &whole, bad))
			dir.Close()
			break
		}
	}
	return samples
}

// sampleInPod reads a device of a pod, given its open folder.
func (s *Source) sampleInPod(
	dir sysfs.Dir, name string, a *driver.Attachment, start time.Time, whole *int, bad *sysfs.Problems,
) driver.Sample {
	d := s.known[name]
	if d == nil {
		d = &device{}
		s.known[name] = d
	}
	age := start.Sub(d.slowAt)
	due := *whole > 0 && (age >= slowEvery || age < 0)
	if due {
		*whole--
	}
	s.measure(dir, name, d, start, due, bad)
	return driver.Sample{Driver: a.Driver, Device: a.Device, Readings: d.report()}
}

// shown reports whether the RDMA device is visible on the host.
func shown(samples []driver.Sample, h *driver.Hardware) bool {
	for i := range samples {
		has := &samples[i].Hardware
		if samples[i].Device == "" &&
			(h.RDMADev != "" && h.RDMADev == has.RDMADev || h.RDMADev == "" && h.PCI == has.PCI) {
			return true
		}
	}
	return false
}

// find opens the folder of the device in the sysfs of a process, by its name, or else by its PCI
// function. It returns no name if the device is not there or the process has ended.
func (s *Source) find(pid int, h *driver.Hardware, taken map[string]bool) (string, sysfs.Dir, error) {
	class, err := sysfs.OpenClass(s.Procfs, pid, "infiniband", s.isSysfs)
	if err != nil {
		return "", 0, unlessEnded(err)
	}
	defer class.Close()
	names := []string{h.RDMADev}
	if h.RDMADev == "" {
		if names, err = sysfs.Names(class, "."); err != nil {
			return "", 0, unlessEnded(err)
		}
	}
	for _, name := range names {
		if taken[name] || h.RDMADev == "" && pciOf(class, name) != h.PCI {
			continue
		}
		dir, err := sysfs.OpenDevice(class, name, s.isSysfs)
		if err != nil {
			return "", 0, unlessEnded(err)
		}
		return name, dir, nil
	}
	return "", 0, nil
}

// pciOf returns the PCI address of a device in an open class folder, "" if it has none.
func pciOf(class sysfs.Dir, name string) string {
	var target [unix.PathMax]byte
	n, err := unix.Readlinkat(int(class), name+"/device", target[:])
	if err != nil {
		return ""
	}
	return driver.NormalizePCI(filepath.Base(string(target[:n])))
}

// unlessEnded returns nil for an error of a process that has ended or a file that does not exist,
// and other errors unchanged.
func unlessEnded(err error) error {
	if sysfs.HasEnded(err) {
		return nil
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("look into a process, which takes CAP_SYS_PTRACE: %w", err)
	}
	return err
}
