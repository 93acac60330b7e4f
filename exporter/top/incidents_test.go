package top

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Incidents that are equal otherwise are sorted by node, in whatever order the nodes answer.
func TestSortIncidents(t *testing.T) {
	i := &recorder.Incident{ID: "1"}
	rows := []Incident{{Node: "node-10", Incident: i}, {Node: "node-2", Incident: i}}
	sortIncidents(rows)
	expect.That(t, rows[0].Node == "node-2", "%s comes first", rows[0].Node)
}

// The incidents of all nodes are a table of a line each, those that are open first, and JSON.
func TestIncidents(t *testing.T) {
	now := report("").Time
	ended := now.Add(-time.Minute)
	node := func(name string, i *recorder.Incident) Node {
		return answering(name, map[string]any{
			snapshotPath: report(name), incidentsPath: present.IncidentsReport{Node: name, Incidents: []*recorder.Incident{i}},
		})
	}
	c := Config{
		Find: func(context.Context) ([]Node, error) {
			return []Node{
				node("node-1", &recorder.Incident{
					ID: "1", Kind: recorder.SourceDown, Source: "nvml", Text: "source nvml fails: timeout", Count: 1,
					Onset: ended.Add(-5 * time.Second), Last: ended, End: &ended, Resolution: recorder.Back,
				}),
				node("node-2", &recorder.Incident{
					ID: "2", Kind: recorder.XID, Text: "gpu-0: XID 31", Count: 29,
					Onset: now.Add(-time.Hour), Last: now.Add(-2 * time.Hour),
					Holders: []recorder.Holder{{Namespace: "team", Pod: "a", Claim: "c", Hit: true}},
				}),
			}, nil
		},
		Format: FormatTable, Clean: same, View: ViewIncidents,
	}
	var out strings.Builder
	must.Do(t, Print(t.Context(), c, &out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for n, want := range map[int][]string{
		len(lines) - 2: {"node-2", "open", "gpu-0: XID 31", " 60 min", " 29 ", "team/a"},
		len(lines) - 1: {"node-1", "resolved", "source nvml fails: timeout", " 5.0 s", " 1 "},
	} {
		for _, text := range want {
			expect.That(t, strings.Contains(lines[n], text), "line %d is without %q: %s", n, text, lines[n])
		}
	}
	c.Format, c.Filter = FormatJSON, "xid open"
	out.Reset()
	var all struct {
		Incidents []struct {
			Node  string
			Count int
		}
	}
	must.Do(t, Print(t.Context(), c, &out))
	err := json.Unmarshal([]byte(out.String()), &all)
	got := all.Incidents
	expect.That(t, err == nil && len(got) == 1 && got[0].Node == "node-2" && got[0].Count == 29,
		"as JSON they are %s: %v", out.String(), err)
}
