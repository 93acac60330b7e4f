package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/dra-exporter/dra-exporter/exporter/web"
)

// Exporters are asked for their summaries only while the page is open.
const (
	askedEach    = 10 * time.Second
	askedAtOnce  = 64
	firstAnswers = 600 * time.Millisecond // how long a request for the page waits for the answers
	maxSummary   = 512 << 10              // bytes
)

// state is what is known about a node. It is immutable.
type state struct {
	node    string
	summary *web.Summary // nil: it has never been read
	tag     string       // of the summary
	err     error        // why the summary may be outdated
}

// fleet has the summaries of all nodes. A request for them renews them in the background, at most
// every ten seconds. fleet is safe for concurrent use.
type fleet struct {
	now       func() time.Time
	exporters func(context.Context) (map[string]string, error)
	ask       func(ctx context.Context, address, path, tag string, most int64, into any) (newTag string, err error)

	sweeping singleflight.Group

	mu     sync.Mutex
	swept  time.Time // when the last sweep began
	nodes  map[string]*state
	err    error // why the list of nodes may be outdated
	change int   // number of changes of nodes
}

// look returns the nodes, sorted by name, and a number that grows with each change.
func (f *fleet) look(ctx context.Context) (nodes []*state, change int, err error) {
	f.mu.Lock()
	due := f.swept.IsZero() || f.now().Sub(f.swept) >= askedEach
	f.mu.Unlock()
	if due {
		done := f.sweeping.DoChan("", func() (any, error) {
			sweep, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*askTimeout)
			defer cancel()
			f.sweep(sweep)
			return nil, nil //nolint:nilnil // the result is in f
		})
		wait := time.NewTimer(firstAnswers)
		defer wait.Stop()
		select {
		case <-done:
		case <-wait.C:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.nodes {
		nodes = append(nodes, s)
	}
	slices.SortFunc(nodes, func(a, b *state) int { return web.CompareNames(a.node, b.node) })
	return nodes, f.change, f.err
}

// sweep asks all nodes once for their summaries.
func (f *fleet) sweep(ctx context.Context) {
	addresses, err := f.exporters(ctx)
	f.mu.Lock()
	f.swept, f.err = f.now(), err
	if f.nodes == nil {
		f.nodes = map[string]*state{}
	}
	for node := range f.nodes {
		if _, listed := addresses[node]; !listed {
			delete(f.nodes, node)
			f.change++
		}
	}
	for node := range addresses {
		if f.nodes[node] == nil {
			f.nodes[node] = &state{node: node, err: errNotAsked}
			f.change++
		}
	}
	f.mu.Unlock()
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	for node, address := range addresses {
		asking.Go(func() error {
			f.renew(ctx, node, address)
			return nil
		})
	}
	_ = asking.Wait() // no function returns an error
}

// renew asks a node for its summary.
func (f *fleet) renew(ctx context.Context, node, address string) {
	f.mu.Lock()
	before := f.nodes[node]
	f.mu.Unlock()
	if before == nil {
		return
	}
	after := &state{node: node}
	after.summary = &web.Summary{}
	after.tag, after.err = f.ask(ctx, address, "/api/v1/summary", before.tag, maxSummary, after.summary)
	switch {
	case errors.Is(after.err, errUnchanged):
		after.summary, after.tag, after.err = before.summary, before.tag, nil
	case after.err != nil:
		after.summary, after.tag = before.summary, before.tag
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[node] != before {
		return
	}
	f.nodes[node] = after
	if after.summary != before.summary || reason(after.err) != reason(before.err) {
		f.change++
	}
}

var (
	errUnchanged  = errors.New("not modified")
	errNotAsked   = errors.New("has not answered yet")
	errRefused    = errors.New("refuses the gateway's own token")
	errUnexpected = errors.New("answers what no exporter answers")
	errTooLarge   = errors.New("answers too much")
)

// ask gets a JSON document from an exporter, of the given size at most. With a tag, it returns
// errUnchanged if the document still has that tag.
func (g *gateway) ask(ctx context.Context, address, path, tag string, most int64, into any) (newTag string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	at, query, _ := strings.Cut(path, "?")
	u := url.URL{Scheme: g.Scheme, Host: address, Path: at, RawQuery: query}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return "", fmt.Errorf("ask an exporter: %w", err)
	}
	if tag != "" {
		request.Header.Set("If-None-Match", tag)
	}
	answer, err := g.Transport.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("ask an exporter: %w", err)
	}
	defer answer.Body.Close()
	body := io.LimitReader(answer.Body, most+1)
	switch err := checkStatus(answer.StatusCode); {
	case err != nil:
		return "", err
	case answer.StatusCode == http.StatusNotModified && tag != "":
		return tag, errUnchanged
	case answer.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%w: status %d", errUnexpected, answer.StatusCode)
	}
	data, err := io.ReadAll(body)
	switch {
	case err != nil:
		return "", fmt.Errorf("read an answer: %w", err)
	case int64(len(data)) > most:
		return "", errTooLarge
	}
	if err := json.Unmarshal(data, into); err != nil {
		return "", fmt.Errorf("%w: %w", errUnexpected, err)
	}
	return answer.Header.Get("Etag"), nil
}

// reason describes in words why an exporter did not answer. It names no addresses.
func reason(err error) string {
	var timeout net.Error
	var op *net.OpError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "does not answer in time"
	case errors.As(err, &op):
		return "can't be reached: " + op.Err.Error()
	}
	for _, known := range []error{errNotAsked, errRefused, errTooLarge} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if errors.Is(err, errUnexpected) {
		return strings.ToValidUTF8(err.Error(), "?")
	}
	return "the connection failed"
}
