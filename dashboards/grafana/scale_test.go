package grafana

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// templating is the part of Grafana's JSON that says what can be chosen.
type templating struct {
	Templating struct {
		List []choice
	}
}

type choice struct {
	Name, Type, Query, Regex, AllValue string
	Hide, Refresh, Sort                int
	IncludeAll, Multi, SkipURLSync     bool
	Current                            struct{ Value any }
}

// Grafana's numbers of settings of variables.
const (
	shown, hidden                   = 0, 2
	whenOpened, whenTheRangeChanges = 1, 2
	unsorted, naturally             = 0, 7
)

// few are the variables of which a fleet has few values, or which those before them restrict to a
// node's or a claim's.
func few() []string { return []string{"cluster", "driver", "model", "device", "pod", "kind"} }

// TestChoices checks that a dashboard asks for the values of the variables that it shows and of no
// other; that it offers 20 of thousands, those that matter most first; and that the dashboards of
// claims, nodes and networks start with the first one: all of a fleet are more than a browser
// draws.
func TestChoices(t *testing.T) {
	first := map[string][]string{
		"dra-claim": {"namespace", "claim"}, "dra-nodes": {"node"}, "dra-network": {"node"},
	}
	for _, b := range Boards() {
		content := must.Get(b.JSON(newCatalog(t)))(t)
		var built templating
		must.Do(t, json.Unmarshal(content, &built))
		searches := false
		for _, v := range built.Templating.List[1:] {
			one := slices.Contains(first[b.UID], v.Name)
			searches = searches || strings.Contains(v.Query, `_name=~".*$search.*"`) ||
				strings.Contains(v.Query, v.Name+`=~".*$search.*"`)
			listed := slices.ContainsFunc(b.lists, func(l list) bool { return l.name == v.Name })
			expect.That(t, v.SkipURLSync == (v.Name == hoursName || listed),
				"%s: %s is part of the address: %v", b.UID, v.Name, !v.SkipURLSync)
			switch {
			case v.Name == "search":
				expect.That(t, v.Type == "textbox" && v.Hide == shown && v.Query == "", "%s: the text box is %+v", b.UID, v)
			case v.Name == hoursName:
				expect.That(t, v.Type == "query" && v.Hide == hidden && v.Refresh == whenTheRangeChanges && v.Query == hoursQuery,
					"%s: the records of hours are chosen by %+v", b.UID, v)
			case listed:
				if v.Type != "query" || v.Hide != hidden || v.Refresh != whenTheRangeChanges || !v.IncludeAll || !v.Multi ||
					v.AllValue != "" || !strings.HasPrefix(v.Query, "query_result(") || v.Regex == "" {
					t.Errorf("%s: the list is %+v", b.UID, v)
				}
			case !slices.Contains(b.uses, v.Name):
				expect.That(t, v.Type == "custom" && v.Hide == hidden && v.Query == "" && v.AllValue == ".*",
					"%s: %s, which is not shown, is %+v", b.UID, v.Name, v)
			case one == v.IncludeAll || one != (v.Current.Value == nil) || v.Type != "query" || v.Hide != shown:
				t.Errorf("%s: %s has all: %v, and starts with %v", b.UID, v.Name, v.IncludeAll, v.Current.Value)
			case slices.Contains(few(), v.Name):
				if !strings.HasPrefix(v.Query, "label_values(") || v.Refresh != whenTheRangeChanges || v.Sort != naturally {
					t.Errorf("%s: %s offers %+v", b.UID, v.Name, v)
				}
			case !strings.HasPrefix(v.Query, "query_result(sort_desc(topk(20, ") || v.Refresh != whenOpened ||
				v.Sort != unsorted || v.Regex == "":
				t.Errorf("%s: %s offers thousands: %+v", b.UID, v.Name, v)
			}
		}
		expect.That(t, searches, "%s: the text box restricts nothing", b.UID)
	}
}

// TestLinks checks that links keep the selection and the time range, and that All is not selected
// where a dashboard shows one of thousands.
func TestLinks(t *testing.T) {
	for from, want := range map[string]map[string][]string{
		"dra-fleet":   {"dra-claim": {"node", "driver"}, "dra-nodes": {"namespace", "claim"}},
		"dra-nodes":   {"dra-network": {"node", "namespace", "claim"}, "dra-claim": {"node", "pod"}},
		"dra-claim":   {"dra-namespaces": {"node", "namespace", "claim"}, "dra-network": {"namespace", "claim"}},
		"dra-network": {"dra-nodes": {"node"}, "dra-fleet": {"cluster", "node"}},
	} {
		boards := Boards()
		b := decode(t, &boards[slices.IndexFunc(boards, func(b Board) bool { return b.UID == from })])
		for to, kept := range want {
			at := slices.IndexFunc(b.Links, func(l link) bool { return strings.HasPrefix(l.URL, "/d/"+to+"?") })
			must.That(t, at >= 0 && b.Links[at].KeepTime && !b.Links[at].IncludeVars,
				"%s has no link to %s that keeps the time range: %+v", from, to, b.Links)
			for _, name := range kept {
				expect.That(t, strings.Contains(b.Links[at].URL, "${"+name+":queryparam}"),
					"the link from %s to %s does not keep %s: %s", from, to, name, b.Links[at].URL)
			}
		}
	}
	for _, from := range Boards() {
		content := must.Get(from.JSON(newCatalog(t)))(t)
		// Links of the dashboard, and of its numbers: those of tables name what they are about.
		urls := regexp.MustCompile(`"url": "/d/([a-z-]+)\?([^"]*)"`)
		for _, match := range urls.FindAllStringSubmatch(string(content), -1) {
			boards := Boards()
			to := boards[slices.IndexFunc(boards, func(b Board) bool { return b.UID == match[1] })]
			for _, name := range to.one {
				if strings.Contains(match[2], "{"+name+":queryparam}") && !slices.Contains(from.one, name) &&
					!strings.Contains(match[2], "var-pod=") {
					t.Errorf("a link from %s selects All of %s: %s", from.UID, name, match[0])
				}
			}
		}
	}
}

// TestTimelines checks that time lines show exceptions only: what is normal has no state, since a
// row for each node or device that is well would hide the others. test/system/dashboards checks
// that no value is without a state.
func TestTimelines(t *testing.T) {
	count := 0
	for _, b := range Boards() {
		for _, row := range b.Rows {
			for _, p := range row.Panels {
				if p.Kind != Timeline {
					continue
				}
				count++
				for _, s := range p.states {
					expect.That(t, s.value != "0" && s.color != green && s.color != grey, "%s: %q shows %s", b.UID, p.Title, s.text)
				}
			}
		}
	}
	expect.That(t, count >= 5, "%d time lines", count)
}
