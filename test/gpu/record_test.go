package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// A recording is a folder: trial.json has the readings, the other files have the output of
// nvidia-smi. README.md states its origin.

// recordedReading is a reading with the name of its quantity, since the numbers of quantities may
// change.
type recordedReading struct {
	Quantity  string        `json:"quantity"`
	Labels    driver.Labels `json:"labels"`
	Value     float64       `json:"value"`
	At        time.Time     `json:"at"`
	Estimated bool          `json:"estimated,omitempty"`
}

type recordedProcess struct {
	PID      int               `json:"pid"`
	Readings []recordedReading `json:"readings"`
}

type recordedSample struct {
	Hardware  driver.Hardware   `json:"hardware"`
	Readings  []recordedReading `json:"readings"`
	Processes []recordedProcess `json:"processes,omitempty"`
}

type recordedLook struct {
	Before []recordedSample `json:"before"`
	After  []recordedSample `json:"after"`
}

type recordedTrial struct {
	Device     string             `json:"device"`
	Idle       recordedLook       `json:"idle"`
	Busy       recordedLook       `json:"busy"`
	IdleSeries [][]recordedSample `json:"idleSeries"`
	BusySeries [][]recordedSample `json:"busySeries"`
	Loads      []loaded           `json:"loads"`
}

// Names of the files of a look.
func queryFile(look string) string { return look + "-nvidia-smi-q.xml" }
func listFile(look string) string  { return look + "-nvidia-smi-L.txt" }
func linksFile(look string) string { return look + "-nvidia-smi-nvlink.txt" }

// record writes a trial into a folder, which it creates.
func record(dir string, t trial, origin string) error {
	recorded := recordedTrial{
		Device: t.Device, Loads: t.Loads,
		Idle: recordedLook{toRecord(t.Idle.before), toRecord(t.Idle.after)},
		Busy: recordedLook{toRecord(t.Busy.before), toRecord(t.Busy.after)},
	}
	for _, samples := range t.IdleSeries {
		recorded.IdleSeries = append(recorded.IdleSeries, toRecord(samples))
	}
	for _, samples := range t.BusySeries {
		recorded.BusySeries = append(recorded.BusySeries, toRecord(samples))
	}
	text, err := json.Marshal(recorded)
	if err != nil {
		return fmt.Errorf("record the trial: %w", err)
	}
	errs := []error{os.MkdirAll(dir, 0o750)}
	for name, content := range map[string]string{
		"trial.json": string(text) + "\n", "README.md": origin,
		queryFile("idle"): anonymous(t.Idle.query), listFile("idle"): t.Idle.list, linksFile("idle"): t.Idle.links,
		queryFile("busy"): anonymous(t.Busy.query), listFile("busy"): t.Busy.list, linksFile("busy"): t.Busy.links,
	} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("record the trial: %w", err)
	}
	return nil
}

// anonymous removes data that identify the machine, and the long list of clocks.
func anonymous(query string) string {
	query = regexp.MustCompile(`(?s)<supported_clocks>.*?</supported_clocks>\s*`).ReplaceAllString(query, "")
	query = regexp.MustCompile(`(?s)<process_name>.*?</process_name>`).ReplaceAllString(query,
		"<process_name></process_name>")
	return regexp.MustCompile(`<(serial|pdi|board_id|chassis_serial_number|clusterUuid)>[^<]*<`).ReplaceAllString(query,
		"<$1><")
}

// replay reads a trial from a folder.
func replay(dir string) (trial, error) {
	var errs []error
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		errs = append(errs, err)
		return string(text)
	}
	samples := func(recorded []recordedSample) []driver.Sample {
		out, err := fromRecord(recorded)
		errs = append(errs, err)
		return out
	}
	var recorded recordedTrial
	errs = append(errs, json.Unmarshal([]byte(read("trial.json")), &recorded))
	look := func(name string, l recordedLook) look {
		return look{
			before: samples(l.Before), after: samples(l.After),
			query: read(queryFile(name)), list: read(listFile(name)), links: read(linksFile(name)),
		}
	}
	t := trial{
		Device: recorded.Device, Loads: recorded.Loads, Idle: look("idle", recorded.Idle),
		Busy: look("busy", recorded.Busy),
	}
	for _, s := range recorded.IdleSeries {
		t.IdleSeries = append(t.IdleSeries, samples(s))
	}
	for _, s := range recorded.BusySeries {
		t.BusySeries = append(t.BusySeries, samples(s))
	}
	if err := errors.Join(errs...); err != nil {
		return trial{}, fmt.Errorf("replay %s: %w", dir, err)
	}
	return t, nil
}

func toRecord(samples []driver.Sample) []recordedSample {
	out := make([]recordedSample, 0, len(samples))
	for _, s := range samples {
		recorded := recordedSample{Hardware: s.Hardware, Readings: readingsToRecord(s.Readings)}
		recorded.Hardware.Serial = "" // as in the output of nvidia-smi
		for _, p := range s.Processes {
			recorded.Processes = append(recorded.Processes, recordedProcess{p.PID, readingsToRecord(p.Readings)})
		}
		out = append(out, recorded)
	}
	return out
}

func readingsToRecord(readings []driver.Reading) []recordedReading {
	out := make([]recordedReading, 0, len(readings))
	for _, r := range readings {
		out = append(out, recordedReading{r.Quantity.String(), r.Labels, r.Value, r.At, r.Estimated})
	}
	return out
}

func fromRecord(recorded []recordedSample) ([]driver.Sample, error) {
	out := make([]driver.Sample, 0, len(recorded))
	for _, r := range recorded {
		readings, err := readingsFromRecord(r.Readings)
		if err != nil {
			return nil, err
		}
		s := driver.Sample{Hardware: r.Hardware, Readings: readings}
		for _, p := range r.Processes {
			readings, err := readingsFromRecord(p.Readings)
			if err != nil {
				return nil, err
			}
			s.Processes = append(s.Processes, driver.Process{PID: p.PID, Readings: readings})
		}
		out = append(out, s)
	}
	return out, nil
}

func readingsFromRecord(recorded []recordedReading) ([]driver.Reading, error) {
	out := make([]driver.Reading, 0, len(recorded))
	for _, r := range recorded {
		q, ok := driver.Standard().Named(r.Quantity)
		if !ok {
			return nil, fmt.Errorf("there is no quantity %q", r.Quantity)
		}
		out = append(out, driver.Reading{Quantity: q, Labels: r.Labels, Value: r.Value, At: r.At, Estimated: r.Estimated})
	}
	return out, nil
}
