package gateway

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// Exporters are asked for their summaries only while the page is open. The page's script requests
// it every 5 s, so that a node is asked every 10 s.
const (
	askedEach    = 8 * time.Second
	staleAfter   = 15 * time.Second       // the age from which an answer is shown with its time
	firstAnswers = 600 * time.Millisecond // how long a request for the page waits for the answers

	// A node is asked promptly, unless it has not answered in that time twice: then it is asked with
	// more time, but less often, and takes no place of the others. It gives its place up earlier.
	promptTimeout = 1500 * time.Millisecond
	promptTries   = 2
	promptPlaces  = 128
	placeTimeout  = 200 * time.Millisecond
	slowPlaces    = 64
	longestPause  = time.Minute // between two requests for a node that does not answer

	maxSummary = 2 << 20 // bytes of memory for a node's summary
	// The memory for all summaries is a share for each node, which is enough for 16 claims, and a pool
	// for all that have more.
	summaryShare = 16 << 10
	summaryPool  = 16 << 20
)

// state is what is known about a node. It is immutable.
type state struct {
	node    string
	summary *present.Summary // nil: it has never been read
	memory  *decode.Account
	tag     string    // of the summary
	at      time.Time // of the last answer
	stale   bool      // the answer was too old when the page was last looked at
	err     error     // why the summary may be outdated

	asked time.Time // when the last request began
	hung  int       // number of requests that were not answered in time, since the last answer
}

// pause is the time between two requests.
func (s *state) pause() time.Duration {
	switch {
	case s.hung == 0:
		return askedEach
	case s.hung <= promptTries: // it has not yet had the longer time
		return 0
	default:
		return min(longestPause, askedEach<<min(2*(s.hung-promptTries)-1, 3))
	}
}

// fleet has the summaries of all nodes. A request for them renews them in the background. fleet is
// safe for concurrent use.
type fleet struct {
	now       func() time.Time
	exporters func(context.Context) (map[string]string, error)
	ask       func(ctx context.Context, address, path, tag string, read func(io.Reader) error) (newTag string, err error)
	memory    *decode.Budget

	renewing singleflight.Group
	slow     chan struct{} // has a value for each slow node that is asked

	mu     sync.Mutex
	nodes  map[string]*state
	err    error // why the list of nodes may be outdated
	change int   // number of changes of what look returns
}

// look returns the nodes, sorted by name, and a number that grows with each change.
func (f *fleet) look(ctx context.Context) (nodes []*state, change int, err error) {
	done := f.renewing.DoChan("", func() (any, error) {
		f.renew(context.WithoutCancel(ctx))
		return nil, nil //nolint:nilnil // the result is in f
	})
	wait := time.NewTimer(firstAnswers)
	defer wait.Stop()
	select {
	case <-done:
	case <-wait.C:
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	for _, s := range f.nodes {
		if stale := s.summary != nil && now.Sub(s.at) > staleAfter; stale != s.stale {
			s = f.set(s.node, func(s *state) { s.stale = stale })
			f.change++
		}
		nodes = append(nodes, s)
	}
	slices.SortFunc(nodes, func(a, b *state) int { return present.CompareNames(a.node, b.node) })
	return nodes, f.change, f.err
}

// set replaces a node's state by a changed copy. f.mu is held.
func (f *fleet) set(node string, change func(*state)) *state {
	changed := *f.nodes[node]
	change(&changed)
	f.nodes[node] = &changed
	return &changed
}

// renew asks all nodes whose turn it is. It returns when those that answer promptly have answered.
// The others continue in the background.
func (f *fleet) renew(ctx context.Context) {
	addresses, err := f.exporters(ctx)
	var prompt sync.WaitGroup
	places := make(chan struct{}, promptPlaces)
	for _, s := range f.due(addresses, err) {
		if s.hung < promptTries {
			places <- struct{}{}
			free := sync.OnceFunc(func() { <-places })
			prompt.Go(func() {
				late := time.AfterFunc(placeTimeout, free)
				defer free()
				defer late.Stop()
				f.renewNode(ctx, s, addresses[s.node], promptTimeout)
			})
			continue
		}
		select {
		case f.slow <- struct{}{}:
			go func() {
				defer func() { <-f.slow }()
				f.renewNode(ctx, s, addresses[s.node], askTimeout)
			}()
		default: // it is still its turn the next time
		}
	}
	prompt.Wait()
}

// due takes over the list of nodes, and returns those whose turn it is: first those that have not
// hung, then those that have hung least, and of these the ones that were asked longest ago.
func (f *fleet) due(addresses map[string]string, err error) (out []*state) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if (err != nil) != (f.err != nil) {
		f.change++
	}
	f.err = err
	if f.nodes == nil {
		f.nodes = map[string]*state{}
	}
	for node, s := range f.nodes {
		if _, listed := addresses[node]; !listed {
			delete(f.nodes, node)
			s.memory.Close()
			f.change++
		}
	}
	now := f.now()
	for node := range addresses {
		s := f.nodes[node]
		if s == nil {
			s = &state{node: node, err: errNotAsked}
			f.change++
		}
		f.nodes[node] = s
		if s.asked.IsZero() || now.Sub(s.asked) >= s.pause() {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *state) int {
		if a.hung != b.hung {
			return a.hung - b.hung
		}
		return a.asked.Compare(b.asked)
	})
	return out
}

// begin records that a node is asked. It reports whether nobody else has asked it meanwhile.
func (f *fleet) begin(before *state) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.nodes[before.node]
	if now == nil || !now.asked.Equal(before.asked) {
		return false
	}
	f.set(before.node, func(s *state) { s.asked = f.now() })
	return true
}

// renewNode asks a node for its summary.
func (f *fleet) renewNode(ctx context.Context, before *state, address string, timeout time.Duration) {
	asking, cancel := context.WithTimeoutCause(ctx, timeout, errSilent)
	defer cancel()
	if !f.begin(before) {
		return
	}
	memory := f.memory.Open(maxSummary)
	var summary present.Summary
	tag, err := f.ask(asking, address, "/api/v1/summary", before.tag, func(r io.Reader) (err error) {
		summary, err = decode.Read[present.Summary](r, memory)
		return err
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.nodes[before.node]
	if now == nil { // it was removed meanwhile
		memory.Close()
		return
	}
	after := f.set(before.node, func(s *state) {
		s.hung = 0
		switch {
		case err == nil:
			s.summary, s.tag, s.at, s.stale, s.err = &summary, tag, f.now(), false, nil
			s.memory, memory = memory, s.memory
		case errors.Is(err, errUnchanged):
			s.at, s.stale, s.err = f.now(), false, nil
		case isSilence(err):
			// A node that did not answer promptly has not failed: it gets more time first.
			if s.hung = now.hung + 1; s.hung > promptTries {
				s.err = err
			}
		default:
			s.err = err
		}
	})
	memory.Close()
	if after.summary != now.summary || reason(after.err) != reason(now.err) || after.stale != now.stale {
		f.change++
	}
}

// How long the list of exporters is used, and the shortest time between two requests for it.
const (
	listedFor  = 15 * time.Second
	listedEach = 2 * time.Second
	maxNodes   = 10000
)

// directory has the addresses of the exporters by node. It reads the list on demand, at most every
// two seconds. It is safe for concurrent use.
type directory struct {
	list func(context.Context) (map[string]string, error)
	now  func() time.Time

	asking singleflight.Group

	mu        sync.Mutex
	asked     time.Time
	addresses map[string]string // immutable
	err       error             // of the last request; then addresses are from an earlier one
}

// all returns the addresses of all exporters. With an error, they are outdated or nil.
func (d *directory) all(ctx context.Context) (map[string]string, error) { return d.get(ctx, listedFor) }

// address returns the address of a node's exporter, and whether there is one. With an error, it is
// not known whether there is one.
func (d *directory) address(ctx context.Context, node string) (address string, known bool, err error) {
	for _, age := range []time.Duration{listedFor, listedEach} {
		var addresses map[string]string
		addresses, err = d.get(ctx, age)
		if address, known = addresses[node]; known {
			return address, true, nil
		}
	}
	return "", false, err
}

// get returns a list that is at most age old.
func (d *directory) get(ctx context.Context, age time.Duration) (map[string]string, error) {
	d.mu.Lock()
	addresses, err, asked := d.addresses, d.err, d.asked
	d.mu.Unlock()
	since := d.now().Sub(asked)
	if !asked.IsZero() && (since < listedEach || err == nil && since < age) {
		return addresses, err
	}
	answer := d.asking.DoChan("", func() (any, error) {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		found, err := d.list(asking)
		for node := range found {
			if !isName(node) || len(found) > maxNodes {
				delete(found, node)
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.asked, d.err = d.now(), err
		if err == nil {
			d.addresses = maps.Clone(found)
		}
		return nil, nil //nolint:nilnil // the result is in d
	})
	select {
	case <-answer:
	case <-ctx.Done():
		return addresses, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.addresses, d.err
}
