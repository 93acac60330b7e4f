package gateway

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

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
