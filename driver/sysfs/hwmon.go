package sysfs

import (
	"cmp"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxSensors      = 64   // of a device
	maxMonitorFiles = 4096 // of a folder of hwmon
)

// Sensor is a sensor of a device's hwmon (Documentation/hwmon/sysfs-interface.rst).
type Sensor struct {
	// Label is the driver's label of the sensor, or else the name of its file, such as temp1 or in0.
	// It is unique among the device's sensors of its kind.
	Label string
	path  string
}

// Temperatures returns the temperature sensors of a device, given its folder, in the order of their
// files. A device without hwmon has none.
func Temperatures(device string) ([]Sensor, error) {
	return sensors(filepath.Join(device, "hwmon"), "", "temp")
}

// Voltages returns the voltage sensors of a device, like Temperatures.
func Voltages(device string) ([]Sensor, error) {
	return sensors(filepath.Join(device, "hwmon"), "", "in")
}

// ClassTemperatures returns the temperature sensors of a class device, given its folder. Its
// monitors are directly in this folder, not in a folder hwmon.
func ClassTemperatures(device string) ([]Sensor, error) {
	return sensors(device, "hwmon", "temp")
}

// sensors returns the sensors of one kind, with files KIND0_input, KIND1_input and so on, of the
// monitors in a folder whose names have a prefix.
func sensors(parent, prefix, kind string) ([]Sensor, error) {
	monitors, err := Names(WorkingDir, parent, maxMonitorFiles)
	if err != nil && !IsGone(err) {
		return nil, err
	}
	var found []Sensor
	for _, monitor := range monitors {
		if !strings.HasPrefix(monitor, prefix) {
			continue
		}
		folder := filepath.Join(parent, monitor)
		files, err := Names(WorkingDir, folder, maxMonitorFiles)
		if err != nil && !IsGone(err) {
			return nil, err
		}
		for _, file := range files {
			name, isInput := strings.CutSuffix(file, "_input")
			if digits, ok := strings.CutPrefix(name, kind); isInput && ok && isNumber(digits) {
				found = append(found, Sensor{label(folder, name), filepath.Join(folder, file)})
			}
		}
	}
	slices.SortFunc(found, func(a, b Sensor) int {
		return cmp.Or(cmp.Compare(len(a.path), len(b.path)), strings.Compare(a.path, b.path)) // temp9, temp10
	})
	found = found[:min(len(found), maxSensors)]
	seen := map[string]bool{}
	for i := range found {
		if s := &found[i]; seen[s.Label] {
			s.Label += " " + strings.TrimSuffix(filepath.Base(s.path), "_input")
		}
		seen[found[i].Label] = true
	}
	return found, nil
}

func isNumber(digits string) bool {
	_, err := strconv.ParseUint(digits, 10, 16)
	return err == nil
}

// Read returns the value of the sensor in degrees Celsius or volts; the kernel's unit is a
// thousandth of these. For 0, which drivers report if a board lacks the sensor, it returns an error
// for which [IsAbsent] is true.
func (s Sensor) Read(r *Reader) (float64, error) {
	value, err := r.Value(WorkingDir, s.path)
	if err != nil {
		return 0, &fs.PathError{Op: "read", Path: s.path, Err: err}
	}
	thousandths, err := strconv.ParseInt(string(value), 10, 64)
	if err == nil && thousandths == 0 {
		return 0, &fs.PathError{Op: "read", Path: s.path, Err: unix.ENODEV}
	}
	return float64(thousandths) / 1000, err
}

// label returns the label of a sensor.
func label(folder, name string) string {
	var r Reader
	value, err := r.Value(WorkingDir, filepath.Join(folder, name+"_label"))
	if err != nil {
		return name
	}
	return strings.ToValidUTF8(string(value), "")
}
