package top

import (
	"bytes"
	"context"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// Whatever an exporter answers, the table has a line for each device, without what could command a
// terminal.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-22T12:00:00Z","node":"node1","devices":[{"driver":"gpu.example.com","pool":"node1",
		"device":"gpu-0","state":"active","model":"A","shares":[{"namespace":"n","claim":"c","weight":1,"pods":["n/p"]}],
		"values":[{"quantity":"utilization","value":0.5},{"quantity":"memory_used","value":1e9},
		{"quantity":"memory_capacity","value":8e10},{"quantity":"power","value":1e308},{"quantity":"energy","value":-1},
		{"quantity":"temperature","labels":{"sensor":"gpu"},"value":40}]}],
		"claims":[{"namespace":"n","name":"c","driver":"gpu.example.com","pool":"node1","device":"gpu-0",
		"since":"0001-01-01T00:00:00Z","lastActive":"0001-01-01T00:00:00Z"}]}`), "gpu", true)
	f.Add([]byte(`{"node":"\u001b[2J\u202e","devices":[{"device":"\u9f8d\u0000\u0301"}]}`), "", false)
	f.Add([]byte(`{"devices":[null,{"shares":[null]}]}`), "\x00", false)
	clean := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return '?'
			}
			return r
		}, s)
	}
	f.Fuzz(func(t *testing.T, data []byte, filter string, wide bool) {
		report, err := Node{"an exporter", func(context.Context, string, url.Values) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}}.report(t.Context(), newMemory().Open(maxNode))
		if err != nil {
			return
		}
		known := fleet{answers: map[string]*answer{"": {report: &report}}}
		all := known.everything()
		rows := all.Devices
		must.That(t, len(rows) == len(report.Devices), "%d rows of %d devices", len(rows), len(report.Devices))
		for _, order := range Orders() {
			sortRows(rows, order, wide)
		}
		chosen := all.chosen(filter, ByState, false)
		for _, view := range Views() {
			for _, r := range chosen.table(view, true, wide, clean).rows {
				if slices.ContainsFunc(r.cells, func(text string) bool { return strings.ContainsFunc(text, unicode.IsControl) }) {
					t.Fatalf("a row is %q", r.cells)
				}
			}
		}
		for _, format := range []Format{FormatTable, FormatWide, FormatJSON} {
			if err := (&Config{Order: ByState, Format: format, Clean: clean}).write(&known, &all, io.Discard); err != nil {
				t.Fatalf("print as %s: %v", format, err)
			}
		}
	})
}
