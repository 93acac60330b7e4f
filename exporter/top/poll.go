package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/web"
)

// answer is the last that an exporter said.
type answer struct {
	name   string
	report *web.Report // the last one; nil: there was none
	at     time.Time   // when it came
	err    error       // of the last request; nil: it succeeded
}

// fleet is what is known of all nodes. It belongs to one goroutine.
type fleet struct {
	answers map[string]*answer
	failed  error // to find the nodes
}

// poll finds the nodes and asks each at the same time. It keeps the last report of those that do
// not answer, and forgets nodes that are gone.
func (f *fleet) poll(ctx context.Context, find func(context.Context) ([]Node, error)) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	var nodes []Node
	if nodes, f.failed = find(ctx); f.failed != nil {
		return
	}
	before := f.answers
	f.answers = map[string]*answer{}
	var asking sync.WaitGroup
	for _, n := range nodes {
		if f.answers[n.Name] != nil {
			continue // it is listed twice
		}
		a := before[n.Name]
		if a == nil {
			a = &answer{name: n.Name}
		}
		f.answers[n.Name] = a
		asking.Go(func() {
			report, err := n.Fetch(ctx)
			if a.err = err; err == nil {
				a.report, a.at = &report, time.Now()
			}
		})
	}
	asking.Wait()
}

// rows returns the rows of all nodes that ever answered.
func (f *fleet) rows() []Row {
	var out []Row
	for _, a := range f.answers {
		if a.report != nil {
			out = append(out, Rows(a.report)...)
		}
	}
	return out
}

// troubles says which nodes do not answer, and since when.
func (f *fleet) troubles(now time.Time) []string {
	var out []string
	if f.failed != nil {
		out = append(out, f.failed.Error())
	}
	for _, a := range f.answers {
		switch {
		case a.err == nil:
		case a.report == nil:
			out = append(out, a.err.Error())
		default:
			out = append(out, fmt.Sprintf("%s is stale for %d s: %v", a.report.Node, int(now.Sub(a.at).Seconds()), a.err))
		}
	}
	slices.Sort(out)
	return out
}

// err returns an error of one line if not all nodes answered.
func (f *fleet) err() error {
	if troubles := f.troubles(time.Now()); len(troubles) > 0 {
		return errors.New(strings.ReplaceAll(strings.Join(troubles, "; "), "\n", " "))
	}
	return nil
}

// heading names the node, or how many there are, with the time of the newest report.
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
	return name + "  " + newest.Local().Format(time.TimeOnly)
}
