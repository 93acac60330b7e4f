package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// A recording is a folder: trial.json has the readings, with the names of quantities, since their
// numbers may change; the other files have the output of nvidia-smi. README.md states its origin.

// Names of the files of a look.
func queryFile(look string) string { return look + "-nvidia-smi-q.xml" }
func listFile(look string) string  { return look + "-nvidia-smi-L.txt" }
func linksFile(look string) string { return look + "-nvidia-smi-nvlink.txt" }

// record writes a trial into a folder, which it creates.
func record(dir string, t trial, origin string) error {
	text, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("record the trial: %w", err)
	}
	text = regexp.MustCompile(`"Serial":"[^"]*"`).ReplaceAll(text, []byte(`"Serial":""`)) // as in the output of nvidia-smi
	text = regexp.MustCompile(`"Quantity":\d+`).ReplaceAllFunc(text, func(field []byte) []byte {
		number, _ := strconv.Atoi(string(field[len(`"Quantity":`):]))
		return fmt.Appendf(nil, `"Quantity":%q`, driver.Quantity(number).String())
	})
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
func replay(dir string) (t trial, err error) {
	read := func(name string) string {
		text, failed := os.ReadFile(filepath.Join(dir, name))
		err = errors.Join(err, failed)
		return string(text)
	}
	quantity := regexp.MustCompile(`(?i)"quantity":"(\w+)"`)
	text := quantity.ReplaceAllStringFunc(read("trial.json"), func(field string) string {
		name := strings.Split(field, `"`)[3]
		q, ok := driver.Standard().Named(name)
		if !ok {
			err = fmt.Errorf("there is no quantity %q", name)
		}
		return fmt.Sprintf(`"quantity":%d`, q)
	})
	err = errors.Join(err, json.Unmarshal([]byte(text), &t))
	for name, l := range map[string]*look{"idle": &t.Idle, "busy": &t.Busy} {
		l.query, l.list, l.links = read(queryFile(name)), read(listFile(name)), read(linksFile(name))
	}
	if err != nil {
		return trial{}, fmt.Errorf("replay %s: %w", dir, err)
	}
	return t, nil
}
