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
	type row = Incident
	var out []Column[row]
	if nodes {
		out = append(out, text("NODE", 8, 0, func(i *row) string { return i.Node }))
	}
	out = append(out,
		text("STATE", 0, 0, (*row).state),
		text("INCIDENT", 30, 0, func(i *row) string { return i.Text }),
		text("BEGAN", 0, 0, func(i *row) string { return present.ClockOfDay(i.Onset) }),
		number("LASTS", 3, func(i *row) string { return present.Lasted(i.Incident, i.now) }),
		number("TIMES", 0, func(i *row) string { return strconv.Itoa(i.Count) }),
		text("LAST", 0, 2, func(i *row) string { return present.ClockOfDay(i.Last) }),
		text("HIT", 16, 0, func(i *row) string { return list(i.Pods(), wide) }))
	if wide {
		out = append(out, text("CLAIMS", 18, 4, func(i *row) string { return list(i.Claims(), wide) }),
			text("ID", 0, 1, func(i *row) string { return i.ID }))
	}
	return out
}
