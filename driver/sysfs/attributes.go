package sysfs

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Attributes reads attributes of a device into readings. An attribute that the device lacks has no
// reading, and is no error.
type Attributes struct {
	Dir      Dir    // to which paths are relative
	Of       string // the name of the device in errors
	Now      func() time.Time
	Reader   *Reader
	Problems *Problems // receives the errors of what can't be read
	Readings []driver.Reading
	// MayBeEmpty means that an empty file is an attribute that the device lacks.
	MayBeEmpty bool
}

// Fail records the error of reading something, unless it means that there is no value.
func (a *Attributes) Fail(what string, err error) {
	absent := IsAbsent(err) || a.MayBeEmpty && errors.Is(err, ErrEmpty)
	if err != nil && !absent {
		a.Problems.Add(fmt.Errorf("read %s of %s: %w", what, a.Of, err))
	}
}

// Add adds a reading with the present time.
func (a *Attributes) Add(q driver.Quantity, value float64, labels ...string) {
	a.AddAt(a.Now(), q, value, labels...)
}

// AddAt adds a reading of a time.
func (a *Attributes) AddAt(at time.Time, q driver.Quantity, value float64, labels ...string) {
	reading := driver.Reading{Quantity: q, Value: value, At: at}
	copy(reading.Labels[:], labels)
	a.Readings = append(a.Readings, reading)
}

// Number returns the number in a file, which has no sign. It returns false if there is none.
func (a *Attributes) Number(path string) (uint64, bool) {
	n, err := a.Reader.Number(a.Dir, path)
	a.Fail(path, err)
	return n, err == nil
}

// Value returns the number in a file, [driver.Malformed] if the file has something else than a
// number without a sign. It returns false if there is none.
func (a *Attributes) Value(path string) (float64, bool) {
	return a.Parse(path, func(text []byte) (float64, error) {
		n, err := strconv.ParseUint(string(text), 10, 64)
		return float64(n), err
	})
}

// Parse is Value for a file that parse reads.
func (a *Attributes) Parse(path string, parse func(text []byte) (float64, error)) (float64, bool) {
	text, err := a.Reader.Value(a.Dir, path)
	var number float64
	if err == nil {
		number, err = parse(text)
	}
	a.Fail(path, err)
	return driver.NumberOf(number, err)
}

// Gauge adds the number in a file, multiplied by a factor. It reports whether there is one.
func (a *Attributes) Gauge(path string, scale float64, q driver.Quantity, labels ...string) bool {
	number, ok := a.Value(path)
	if ok {
		a.Add(q, number*scale, labels...)
	}
	return ok
}

// Text returns the line in a file, "" if there is none.
func (a *Attributes) Text(path string) string {
	text, err := a.Reader.Value(a.Dir, path)
	a.Fail(path, err)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(text), "")
}

// Sensors adds the readings of the sensors that list returns for a folder, and returns the names of
// all sensors, with whether each has a reading. name returns the name of a sensor, given its label.
// Of several sensors with one name, the first that has a value counts.
func (a *Attributes) Sensors(
	q driver.Quantity, list func(folder string) ([]Sensor, error), folder string, name func(label string) string,
) map[string]bool {
	sensors, err := list(folder)
	a.Fail("hwmon", err)
	seen := map[string]bool{}
	for _, sensor := range sensors {
		value, err := sensor.Read(a.Reader)
		a.Fail("sensor "+sensor.Label, err)
		value, ok := driver.NumberOf(value, err)
		known := name(sensor.Label)
		if ok && !seen[known] {
			a.Add(q, value, known)
		}
		seen[known] = seen[known] || ok
	}
	return seen
}

// AsLabeled is the name of a sensor whose label is its name.
func AsLabeled(label string) string { return label }

// AER adds the numbers of PCIe errors of a device, given its folder, and reports whether the kernel
// counts them.
func (a *Attributes) AER(folder string) bool {
	correctable, uncorrectable, ok := AER(folder)
	if ok {
		a.Add(driver.Errors, correctable, "pcie_aer", "correctable")
		a.Add(driver.Errors, uncorrectable, "pcie_aer", "uncorrectable")
	}
	return ok
}

// Identify sets what the PCI function of a device, given its folder, says about the hardware: its
// address and NUMA node, and the device that it is a part of, for a virtual function and for a
// device on the auxiliary bus (a scalable function), which has no address of its own. A virtio
// device is a whole function. It returns false for devices of other buses, such as USB, whose PCI
// address is that of a controller with several devices.
func Identify(h *driver.Hardware, device string) bool {
	function, bus := device, Bus(device)
	if bus == "virtio" || bus == "auxiliary" {
		function = filepath.Dir(device)
	}
	if Bus(function) != "pci" {
		return false
	}
	h.PCI, h.NUMANode = driver.NormalizePCI(filepath.Base(function)), NUMANode(function)
	if bus == "auxiliary" {
		h.Kind, h.Parent, h.PCI = driver.KindPartition, h.PCI, ""
	} else if physical, ok := Follow(function, "physfn"); ok {
		h.Kind, h.Parent = driver.KindPartition, driver.NormalizePCI(filepath.Base(physical))
	}
	return true
}

// maxAER is the maximum size of a file of PCIe errors, which has a line for each of at most 32
// kinds.
const maxAER = 4 << 10

// AER returns the numbers of corrected and of uncorrected PCIe errors since the kernel found a
// device, given its folder (aer_dev_correctable; aer_dev_nonfatal and aer_dev_fatal, in
// Documentation/ABI/testing/sysfs-bus-pci-devices-aer). It returns false if the kernel does not
// count them.
func AER(device string) (correctable, uncorrectable float64, ok bool) {
	correctable, corrected := totalAER(device, "aer_dev_correctable", "TOTAL_ERR_COR")
	nonfatal, isNonfatal := totalAER(device, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL")
	fatal, isFatal := totalAER(device, "aer_dev_fatal", "TOTAL_ERR_FATAL")
	return correctable, nonfatal + fatal, corrected && isNonfatal && isFatal
}

func totalAER(device, file, total string) (float64, bool) {
	content, err := ReadFile(filepath.Join(device, file), maxAER)
	if err != nil {
		return 0, false
	}
	return parseAER(string(content), total)
}

// parseAER returns the number in the line with a name, [driver.Malformed] if there is none.
func parseAER(content, name string) (float64, bool) {
	for line := range strings.Lines(content) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == name {
			return driver.NumberOf(strconv.ParseUint(fields[1], 10, 64))
		}
	}
	return 0, false
}

// Problems collects the errors of a sample: the first one and the number of all, since many devices
// may fail for the same reason.
type Problems struct {
	first error
	more  int
}

// Add adds an error, unless it is nil.
func (p *Problems) Add(err error) {
	switch {
	case err == nil:
	case p.first == nil:
		p.first = err
	default:
		p.more++
	}
}

// Len returns the number of errors.
func (p *Problems) Len() int {
	if p.first == nil {
		return 0
	}
	return 1 + p.more
}

// Err returns the first error with the number of the others, nil if there is none.
func (p *Problems) Err() error {
	if p.more == 0 {
		return p.first
	}
	return fmt.Errorf("%w (and %d more errors)", p.first, p.more)
}
