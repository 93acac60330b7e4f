package sysfs

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxSensors bounds the sensors of a device.
const maxSensors = 64

// Sensor is a temperature sensor of a device's hwmon (Documentation/hwmon/sysfs-interface.rst).
type Sensor struct {
	// Label is what the driver calls the sensor, else its file's name, such as temp1. It is unique
	// among the sensors of a device.
	Label string
	path  string
}

// Temperatures returns the temperature sensors of a device, given its folder, in the order of their
// files. A device without hwmon has none.
func Temperatures(device string) ([]Sensor, error) {
	return temperatures(filepath.Join(device, "hwmon"), "")
}

// ClassTemperatures returns the temperature sensors of a class device, given its folder. Below such
// a device there is no folder hwmon between it and its monitors.
func ClassTemperatures(device string) ([]Sensor, error) { return temperatures(device, "hwmon") }

// temperatures returns the sensors of the monitors in a folder, whose names have that prefix.
func temperatures(parent, prefix string) ([]Sensor, error) {
	monitors, err := names(parent)
	if err != nil {
		return nil, err
	}
	var sensors []Sensor
	for _, monitor := range monitors {
		if !strings.HasPrefix(monitor, prefix) {
			continue
		}
		folder := filepath.Join(parent, monitor)
		files, err := names(folder)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if name, ok := strings.CutSuffix(file, "_input"); ok && strings.HasPrefix(name, "temp") {
				sensors = append(sensors, Sensor{label(folder, name), filepath.Join(folder, file)})
			}
		}
	}
	slices.SortFunc(sensors, func(a, b Sensor) int {
		return cmp.Or(cmp.Compare(len(a.path), len(b.path)), strings.Compare(a.path, b.path)) // temp9, temp10
	})
	sensors = sensors[:min(len(sensors), maxSensors)]
	seen := map[string]bool{}
	for i := range sensors {
		if s := &sensors[i]; seen[s.Label] {
			s.Label += " " + strings.TrimSuffix(filepath.Base(s.path), "_input")
		}
		seen[sensors[i].Label] = true
	}
	return sensors, nil
}

// Read returns the temperature in degrees Celsius.
func (s Sensor) Read(r *Reader) (float64, error) {
	value, err := r.Value(WorkingDir, s.path)
	if err != nil {
		return 0, &fs.PathError{Op: "read", Path: s.path, Err: err}
	}
	millidegrees, err := strconv.ParseInt(string(value), 10, 64)
	return float64(millidegrees) / 1000, err
}

// label returns what the driver calls a sensor.
func label(folder, name string) string {
	var r Reader
	value, err := r.Value(WorkingDir, filepath.Join(folder, name+"_label"))
	if err != nil {
		return name
	}
	return strings.ToValidUTF8(string(value), "")
}

// names returns what is in a folder, none if it is not there.
func names(folder string) ([]string, error) {
	f, err := os.Open(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	found, err := f.Readdirnames(4096)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(found)
	return found, nil
}
