package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// answer is the last answer of an exporter.
type answer struct {
	name   string
	report *present.Report // nil: none yet
	at     time.Time       // when it arrived
	err    error           // of the last request; nil: it succeeded

	incidents []*recorder.Incident // those of the last answer
	without   error                // why there are no incidents: the flight recorder may be off
	memory    *decode.Account      // of the report and the incidents
	node      Node
}

// fleet is the state of all nodes. It is not safe for concurrent use.
type fleet struct {
	answers map[string]*answer
	failed  error // why the nodes were not found
	memory  *decode.Budget
}

// Nodes are asked side by side, but each answer that is being read takes memory. A node that does
// not answer in that time gives its place up, so that it does not delay others.
const (
	places       = 64
	placeTimeout = 100 * time.Millisecond
)

// poll finds the nodes and asks all of them. It keeps the last report of nodes that do not
// answer, and forgets nodes that are gone.
func (f *fleet) poll(ctx context.Context, find func(context.Context) ([]Node, error)) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	var nodes []Node
	if nodes, f.failed = find(ctx); f.failed != nil {
		return
	}
	if f.memory == nil {
		f.memory = newMemory()
	}
	before := f.answers
	f.answers = map[string]*answer{}
	askEach(nodes, func(n Node) func() {
		a := before[n.Name]
		if a == nil {
			a = &answer{name: n.Name}
		}
		f.answers[n.Name], a.node = a, n
		return func() { a.renew(ctx, n, f.memory.Open(maxNode)) }
	})
	for name, a := range before {
		if f.answers[name] == nil {
			a.memory.Close()
		}
	}
}

// askEach asks nodes side by side, each of them once. asker is called for one node after the other.
func askEach(nodes []Node, asker func(Node) (ask func())) {
	var asking sync.WaitGroup
	taken, seen := make(chan struct{}, places), map[string]bool{}
	for _, n := range nodes {
		if seen[n.Name] {
			continue // it is listed twice
		}
		seen[n.Name] = true
		ask := asker(n)
		taken <- struct{}{}
		free := sync.OnceFunc(func() { <-taken })
		asking.Go(func() {
			defer free()
			defer time.AfterFunc(placeTimeout, free).Stop()
			ask()
		})
	}
	asking.Wait()
}

// renew asks a node.
func (a *answer) renew(ctx context.Context, n Node, memory *decode.Account) {
	report, err := n.report(ctx, memory)
	if a.err = err; err != nil {
		memory.Close()
		return
	}
	a.memory.Close()
	a.report, a.at, a.memory = &report, time.Now(), memory
	var happened present.IncidentsReport
	if happened, a.without = n.incidents(ctx, memory); a.without == nil {
		a.incidents = happened.Incidents
	}
}

// Everything is the content of all views, filtered and sorted.
type Everything struct {
	Nodes      []NodeAnswer     `json:"nodes"`
	Devices    []present.Device `json:"devices"`
	Claims     []present.Holder `json:"claims"`
	Pods       []present.Holder `json:"pods"`
	Namespaces []present.Holder `json:"namespaces"`
	Incidents  []Incident       `json:"incidents"`
}

// Incident is an incident of a node, as top shows it.
type Incident struct {
	Node string `json:"node"`
	*recorder.Incident

	now  time.Time // of the node
	from string    // the exporter
}

// NodeAnswer is the outcome of asking a node.
type NodeAnswer struct {
	Name  string    `json:"name"`
	Time  time.Time `json:"time,omitzero"` // of its last report
	Error string    `json:"error,omitempty"`
}

// everything returns the rows of all nodes with a report.
func (f *fleet) everything() Everything {
	out := Everything{
		Nodes: []NodeAnswer{}, Devices: []present.Device{}, Claims: []present.Holder{}, Pods: []present.Holder{},
		Namespaces: []present.Holder{}, Incidents: []Incident{},
	}
	var unclaimed []present.Holder
	for name, a := range f.answers {
		said := NodeAnswer{Name: name}
		if a.err != nil {
			said.Error = a.err.Error()
		}
		if r := a.report; r != nil {
			said.Name, said.Time = cmp.Or(r.Node, name), r.Time
			out.Devices = append(out.Devices, present.Devices(r, name)...)
			out.Claims = append(out.Claims, present.ClaimHolders(r, name)...)
			out.Pods = append(out.Pods, present.PodHolders(r, name)...)
			unclaimed = append(unclaimed, present.UnclaimedHolders(r, name)...)
			out.Incidents = append(out.Incidents, a.happened()...)
		}
		out.Nodes = append(out.Nodes, said)
	}
	out.Namespaces = append(out.Namespaces, present.NamespaceHolders(slices.Concat(out.Claims, unclaimed))...)
	slices.SortFunc(out.Nodes, func(a, b NodeAnswer) int { return present.CompareNames(a.Name, b.Name) })
	return out
}

// chosen returns filtered and sorted rows.
func (e *Everything) chosen(filter string, by Order, reverse bool) Everything {
	holders := func(view View, rows []present.Holder) []present.Holder {
		return choose(rows, holderColumns(view, true, true), filter)
	}
	out := Everything{
		Nodes: e.Nodes, Devices: Filter(e.Devices, filter), Claims: holders(ViewClaims, e.Claims),
		Pods: holders(ViewPods, e.Pods), Namespaces: holders(ViewNamespaces, e.Namespaces),
		Incidents: choose(e.Incidents, incidentColumns(true, true), filter),
	}
	sortRows(out.Devices, by, reverse)
	for _, rows := range [][]present.Holder{out.Claims, out.Pods, out.Namespaces} {
		sortHolders(rows, by, reverse)
	}
	sortIncidents(out.Incidents)
	return out
}

// summary returns the number of devices in each state, and of open incidents.
func (e *Everything) summary() string {
	open := 0
	for i := range e.Incidents {
		if e.Incidents[i].Open() {
			open++
		}
	}
	out := present.CountStates(e.Devices)
	if open > 0 {
		out += ", " + present.Count(open, "incident") + " open"
	}
	return out
}

// happened returns the incidents of a node.
func (a *answer) happened() []Incident {
	out := make([]Incident, 0, len(a.incidents))
	for _, i := range a.incidents {
		out = append(out, Incident{Node: a.report.Node, Incident: i, now: a.report.Time, from: a.name})
	}
	return out
}

// troubles describes the nodes that do not answer, and since when. For the view of incidents, it
// includes nodes that answer without incidents.
func (f *fleet) troubles(now time.Time, view View) []string {
	var out []string
	if f.failed != nil {
		out = append(out, f.failed.Error())
	}
	for _, a := range f.answers {
		switch {
		case a.err == nil && a.without != nil && view == ViewIncidents:
			out = append(out, a.without.Error())
		case a.err == nil:
		case a.report == nil:
			out = append(out, a.err.Error())
		default:
			out = append(out, fmt.Sprintf("%s is stale for %s: %v", a.report.Node,
				present.Duration(now.Sub(a.at).Seconds()), a.err))
		}
	}
	slices.Sort(out)
	return out
}

// err returns a one-line error unless all nodes answered.
func (f *fleet) err(view View) error {
	if troubles := f.troubles(time.Now(), view); len(troubles) > 0 {
		return errors.New(strings.ReplaceAll(strings.Join(troubles, "; "), "\n", " "))
	}
	return nil
}

// heading returns the node's name, or the number of nodes, with the time of the newest report.
func (f *fleet) heading() string {
	var newest time.Time
	name := ""
	for _, a := range f.answers {
		if a.report != nil {
			name = a.report.Node
			if a.report.Time.After(newest) {
				newest = a.report.Time
			}
		}
	}
	switch {
	case newest.IsZero():
		return "no answer yet"
	case len(f.answers) > 1:
		name = fmt.Sprintf("%d nodes", len(f.answers))
	}
	return name + "  " + present.Clock(newest)
}
