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

	"golang.org/x/sys/unix"
)

// maxSensors bounds the sensors of a device.
const maxSensors = 64

// Sensor is a sensor of a device's hwmon (Documentation/hwmon/sysfs-interface.rst).
type Sensor struct {
	// Label is what the driver calls the sensor, else its file's name, such as temp1 or in0. It is
	// unique among the sensors of its kind that a device has.
	Label string
	path  string
}

// Temperatures returns the temperature sensors of a device, given its folder, in the order of their
// files. A device without hwmon has none.
func Temperatures(device string) ([]Sensor, error) {
	return sensors(filepath.Join(device, "hwmon"), "", "temp")
}

// Voltages returns the voltage sensors of a device as Temperatures does those of temperature.
func Voltages(device string) ([]Sensor, error) {
	return sensors(filepath.Join(device, "hwmon"), "", "in")
}

// ClassTemperatures returns the temperature sensors of a class device, given its folder. Below such
// a device there is no folder hwmon between it and its monitors.
func ClassTemperatures(device string) ([]Sensor, error) {
	return sensors(device, "hwmon", "temp")
}

// sensors returns the sensors of one kind that the monitors in a folder have whose names have that
// prefix. The files of a kind are KIND0_input, KIND1_input and so on.
func sensors(parent, prefix, kind string) ([]Sensor, error) {
	monitors, err := names(parent)
	if err != nil {
		return nil, err
	}
	var found []Sensor
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

// Read returns what the sensor measures: degrees Celsius or volts, which the kernel has in
// thousandths. 0 is what drivers say where a board has no such sensor: the value is absent
// ([IsAbsent]).
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
