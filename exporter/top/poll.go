package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// answer is the last answer of an exporter.
type answer struct {
	page   *present.Page   // nil: none yet
	memory *decode.Account // of it
	at     time.Time       // when it arrived
	err    error           // of the last request; nil: it succeeded
	node   Node
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
			a = &answer{}
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
	page, err := fetch(ctx, n, rowsPath, nil, func(r io.Reader) (present.Page, error) { return decode.Page(r, memory) })
	if a.err = err; err != nil {
		memory.Close()
		return
	}
	a.memory.Close()
	a.page, a.at, a.memory = &page, time.Now(), memory
}

// pages returns the last answers of all nodes.
func (f *fleet) pages() (out []*present.Page) {
	for _, a := range f.answers {
		if a.page != nil {
			out = append(out, a.page)
		}
	}
	return out
}

// troubles describes the nodes that do not answer, and since when.
func (f *fleet) troubles(now time.Time) []string {
	var out []string
	if f.failed != nil {
		out = append(out, f.failed.Error())
	}
	for _, a := range f.answers {
		switch {
		case a.err == nil:
		case a.page == nil:
			out = append(out, a.err.Error())
		default:
			out = append(out, fmt.Sprintf("%s is stale for %s: %v", a.page.Node,
				present.Duration(now.Sub(a.at).Seconds()), a.err))
		}
	}
	slices.Sort(out)
	return out
}

// err returns an error unless all nodes answered.
func (f *fleet) err() error {
	var all []error
	for _, trouble := range f.troubles(time.Now()) {
		all = append(all, errors.New(trouble))
	}
	return oneLine(errors.Join(all...))
}

// heading returns the node's name, or the number of nodes, with the time of the newest answer, and
// the sums of all nodes.
func (f *fleet) heading() string {
	newest, name, pages := "", "", f.pages()
	for _, p := range pages {
		name, newest = p.Node, max(newest, p.Time)
	}
	switch {
	case newest == "":
		return "no answer yet"
	case len(f.answers) > 1:
		name = present.Count(len(f.answers), "node")
	}
	return name + "  " + newest + "  " + present.Sum(pages)
}
