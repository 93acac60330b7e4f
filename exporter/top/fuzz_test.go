package top

import (
	"bytes"
	"context"
	"io"
	"net/url"
	"strings"
	"testing"
	"unicode"

	"github.com/rivo/uniseg"
)

// Whatever an exporter answers, the table has a line for each device, as wide as asked for, and
// without what could command a terminal.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-22T12:00:00Z","node":"node1","devices":[{"driver":"gpu.example.com","pool":"node1",
		"device":"gpu-0","state":"active","model":"A","shares":[{"namespace":"n","claim":"c","weight":1,"pods":["n/p"]}],
		"values":[{"quantity":"utilization","value":0.5},{"quantity":"memory_used","value":1e9},
		{"quantity":"memory_capacity","value":8e10},{"quantity":"power","value":1e308},{"quantity":"energy","value":-1},
		{"quantity":"temperature","labels":{"sensor":"gpu"},"value":40}]}],
		"claims":[{"namespace":"n","name":"c","driver":"gpu.example.com","pool":"node1","device":"gpu-0",
		"since":"0001-01-01T00:00:00Z","lastActive":"0001-01-01T00:00:00Z"}]}`), "gpu", uint8(80))
	f.Add([]byte(`{"node":"\u001b[2J\u202e","devices":[{"device":"\u9f8d\u0000\u0301"}]}`), "", uint8(1))
	f.Add([]byte(`{"devices":[null,{"shares":[null]}]}`), "\x00", uint8(0))
	clean := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return '?'
			}
			return r
		}, s)
	}
	f.Fuzz(func(t *testing.T, data []byte, filter string, width uint8) {
		report, err := newNode("an exporter", func(context.Context, string, url.Values) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}).Fetch(t.Context(), newMemory().Open(maxNode))
		if err != nil {
			return
		}
		known := fleet{answers: map[string]*answer{"": {report: &report}}}
		all := known.everything()
		rows := all.Devices
		if len(rows) != len(report.Devices) {
			t.Fatalf("%d rows of %d devices", len(rows), len(report.Devices))
		}
		for _, order := range Orders() {
			sortRows(rows, order, width%2 == 1)
		}
		chosen := all.chosen(filter, ByState, false)
		for _, view := range Views() {
			table := chosen.table(view, true, width%3 == 0, int(width), clean)
			for _, line := range append(table.Lines, table.Titles) {
				if width > 0 && uniseg.StringWidth(line) > int(width) || strings.ContainsFunc(line, unicode.IsControl) {
					t.Fatalf("line %q for a width of %d", line, width)
				}
			}
			for i := range table.Lines {
				of := chosen.subject(view, i)
				if lines := (&answer{report: &report}).describe(of); len(lines) == 0 && view != ViewNamespaces {
					t.Fatalf("nothing is known of %+v", of)
				}
			}
		}
		for _, format := range []Format{FormatTable, FormatWide, FormatJSON} {
			if err := (&Config{Order: ByState, Format: format, Clean: clean}).print(&known, &all, io.Discard); err != nil {
				t.Fatalf("print as %s: %v", format, err)
			}
		}
	})
}
