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
func FuzzRows(f *testing.F) {
	f.Add([]byte(`{"node":"node1","time":"2026-11-22 12:00:00 UTC","ids":["gpu.example.com/node1/gpu-0"],"devices":[{
		"driver":"gpu.example.com","pool":"node1","device":"gpu-0","id":"gpu.example.com/node1/gpu-0","state":"active",
		"model":"A","utilization":["50.0 %",0.5],"memory":[],"power":["x",1e308],"holders":[{"pods":"n/p","claim":"n/c"}]}],
		"claims":[["n","c",0,[],["1 %",0.01],[],[],[],["3 min",180],["1 %",0.01],"--1"]],"pods":[["n","p",7,[]]],
		"incidents":[{"id":"1","state":"open","for":["1 s",1]}]}`), "gpu", true)
	f.Add([]byte(`{"node":"\u001b[2J\u202e","devices":[{"device":"\u9f8d\u0000\u0301"}]}`), "", false)
	f.Add([]byte(`{"devices":[null,{"holders":[null]}],"pods":[null]}`), "\x00", false)
	clean := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return '?'
			}
			return r
		}, s)
	}
	f.Fuzz(func(t *testing.T, data []byte, filter string, wide bool) {
		a := asked(t, Node{"an exporter", func(context.Context, string, url.Values) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}})
		if a.err != nil {
			return
		}
		known := fleet{answers: map[string]*answer{"": a}}
		_ = known.heading()
		rows := known.table(ViewDevices, "", ByState, false).rows
		must.That(t, len(rows) == len(a.page.Devices), "%d rows of %d devices", len(rows), len(a.page.Devices))
		for _, order := range Orders() {
			for _, view := range Views() {
				shown := known.table(view, filter, order, wide)
				titles, lines := shown.lay(true, wide, clean)
				for _, line := range lines {
					bad := slices.ContainsFunc(line, func(text string) bool { return strings.ContainsFunc(text, unicode.IsControl) })
					must.That(t, !bad && len(line) == len(titles), "a row is %q", line)
				}
			}
		}
	})
}
