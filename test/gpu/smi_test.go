package gpu

import (
	"encoding/xml"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// element is an element of the output of `nvidia-smi -q -x` (nvsmi_device_v11.dtd to v13.dtd).
type element struct {
	XMLName  xml.Name
	Text     string    `xml:",chardata"`
	Elements []element `xml:",any"`
}

// parseQuery parses the output of `nvidia-smi -q -x`.
func parseQuery(text string) (element, error) {
	var log element
	if err := xml.Unmarshal([]byte(text), &log); err != nil {
		return element{}, fmt.Errorf("parse output of nvidia-smi: %w", err)
	}
	if log.XMLName.Local != "nvidia_smi_log" {
		return element{}, fmt.Errorf("parse output of nvidia-smi: it is a %s", log.XMLName.Local)
	}
	return log, nil
}

// all returns the elements of a path, whose names are separated by slashes.
func (e *element) all(path string) []*element {
	name, rest, deeper := strings.Cut(path, "/")
	var found []*element
	for i := range e.Elements {
		child := &e.Elements[i]
		switch {
		case child.XMLName.Local != name:
		case deeper:
			found = append(found, child.all(rest)...)
		default:
			found = append(found, child)
		}
	}
	return found
}

// text returns the text of the first element of a path, "" if there is none.
func (e *element) text(path string) string {
	if found := e.all(path); len(found) > 0 {
		return strings.TrimSpace(found[0].Text)
	}
	return ""
}

// number returns the number at a path in base units, or false if nvidia-smi has none: N/A, or
// words.
func (e *element) number(path string) (float64, bool) { return number(e.text(path)) }

// sum returns the sum of the numbers at some paths, or false if there is none.
func (e *element) sum(paths []string) (float64, bool) {
	sum, some := 0., false
	for _, path := range paths {
		if v, ok := e.number(path); ok {
			sum, some = sum+v, true
		}
	}
	return sum, some
}

// number returns the number in a text such as "97887 MiB" in base units, NaN if its unit is
// unknown. It is 1 or 0 for a word that says whether something holds, the lanes of "16x", and the
// number of the performance state "P2".
func number(text string) (float64, bool) {
	text = strings.TrimSpace(text)
	switch text {
	case "Yes", "Active":
		return 1, true
	case "No", "Not Active":
		return 0, true
	}
	if lanes, ok := strings.CutSuffix(text, "x"); ok {
		text = lanes
	} else if state, ok := strings.CutPrefix(text, "P"); ok {
		text = state
	}
	digits, unit, _ := strings.Cut(text, " ")
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, false
	}
	scale, known := map[string]float64{
		"": 1, "MiB": 1 << 20, "KiB": 1 << 10, "W": 1, "C": 1, "MHz": 1e6, "%": 0.01,
		"us": 1e-6, "ns": 1e-9,
	}[unit]
	if !known {
		return math.NaN(), true
	}
	return v * scale, true
}

// parseList returns the UUIDs of GPUs and MIG devices in the output of `nvidia-smi -L`.
func parseList(text string) []string {
	var uuids []string
	for _, match := range regexp.MustCompile(`\(UUID: ([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
		uuids = append(uuids, match[1])
	}
	return uuids
}

// linkBytes are the bytes over a GPU's NVLinks.
type linkBytes struct{ transmitted, received float64 }

// parseLinks returns the bytes over all NVLinks of each GPU, by UUID, in the output of `nvidia-smi
// nvlink -gt d`.
func parseLinks(text string) map[string]linkBytes {
	links := map[string]linkBytes{}
	uuid := ""
	line := regexp.MustCompile(`Link \d+: Data (Tx|Rx): (.+)`)
	for l := range strings.Lines(text) {
		if found := parseList(l); len(found) == 1 {
			uuid = found[0]
		}
		match := line.FindStringSubmatch(strings.TrimSpace(l))
		if match == nil || uuid == "" {
			continue
		}
		v, ok := number(match[2])
		if !ok {
			continue
		}
		of := links[uuid]
		if match[1] == "Tx" {
			of.transmitted += v
		} else {
			of.received += v
		}
		links[uuid] = of
	}
	return links
}
