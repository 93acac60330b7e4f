package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// Incident is an incident of a node, as top shows it.
type Incident struct {
	Node string `json:"node"`
	*recorder.Incident

	now  time.Time // of the node
	from string    // the exporter
}

// sortIncidents sorts incidents: open ones first, then by the last occurrence, then by node.
func sortIncidents(all []Incident) {
	slices.SortStableFunc(all, func(a, b Incident) int {
		return cmp.Or(a.Compare(b.Incident), present.CompareNames(a.Node, b.Node))
	})
}

// filterIncidents returns the incidents that contain all words of a text.
func filterIncidents(all []Incident, text string) []Incident {
	return slices.DeleteFunc(slices.Clone(all), func(i Incident) bool {
		return !hasWords(text, slices.Concat(
			[]string{i.Node, i.state(), string(i.Kind), i.Text, i.Subject()}, i.Claims(), i.Pods(),
		))
	})
}

// hasWords reports whether each word of a text is contained in one of the strings.
func hasWords(text string, in []string) bool {
	all := strings.ToLower(strings.Join(in, " "))
	return !slices.ContainsFunc(strings.Fields(strings.ToLower(text)), func(word string) bool {
		return !strings.Contains(all, word)
	})
}

func (i *Incident) state() string {
	word, _ := present.StateOf(i.Incident)
	return word
}

// incidentColumns returns the columns of incidents.
func incidentColumns(nodes, wide bool) []Column[Incident] {
	var out []Column[Incident]
	if nodes {
		out = append(out, Column[Incident]{Title: "NODE", least: 8, cell: func(i *Incident) string { return i.Node }})
	}
	out = append(out,
		Column[Incident]{Title: "STATE", cell: (*Incident).state},
		Column[Incident]{Title: "INCIDENT", least: 30, cell: func(i *Incident) string { return i.Text }},
		Column[Incident]{Title: "BEGAN", cell: func(i *Incident) string { return present.ClockOfDay(i.Onset) }},
		Column[Incident]{Title: "LASTS", Right: true, drop: 3, cell: func(i *Incident) string {
			return present.Lasted(i.Incident, i.now)
		}},
		Column[Incident]{Title: "TIMES", Right: true, cell: func(i *Incident) string { return strconv.Itoa(i.Count) }},
		Column[Incident]{Title: "LAST", drop: 2, cell: func(i *Incident) string { return present.ClockOfDay(i.Last) }},
		Column[Incident]{Title: "HIT", least: 16, cell: func(i *Incident) string { return list(i.Pods(), wide) }})
	if wide {
		out = append(out,
			Column[Incident]{
				Title: "CLAIMS", least: 18, drop: 4,
				cell: func(i *Incident) string { return list(i.Claims(), wide) },
			},
			Column[Incident]{Title: "ID", drop: 1, cell: func(i *Incident) string { return i.ID }})
	}
	return out
}
