// Package decode reads JSON documents of exporters that may lie. It bounds the memory that they
// take, also for all documents together.
//
// Bounds (max…) are for what other exporters send.
package decode

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"
)

var (
	// ErrTooLarge is the error for a document that is larger than that of any node.
	ErrTooLarge = errors.New("answer is too large")
	// ErrNoRoom is the error for a document that does not fit beside those of other nodes.
	ErrNoRoom = errors.New("no memory is left for the answer")
)

// Budget is the memory for the documents of many nodes. Each document has a share that no other
// document can take. What it needs beyond its share comes from a pool. Budget is safe for
// concurrent use.
type Budget struct {
	share int64
	pool  atomic.Int64 // what is left
}

// NewBudget returns a budget in bytes.
func NewBudget(share, pool int64) *Budget {
	b := &Budget{share: share}
	b.pool.Store(pool)
	return b
}

// Account is the memory that a document takes, as it is estimated while it is read. It is not safe
// for concurrent use.
type Account struct {
	of         *Budget
	used, most int64
}

// Open returns an account for a document of at most the given memory.
func (b *Budget) Open(most int64) *Account { return &Account{of: b, most: most} }

// take adds n bytes, which may be negative.
func (a *Account) take(n int64) error {
	before := max(0, a.used-a.of.share)
	if a.used+n > a.most {
		return ErrTooLarge
	}
	beyond := max(0, a.used+n-a.of.share) - before
	if a.of.pool.Add(-beyond) < 0 && beyond > 0 {
		a.of.pool.Add(beyond)
		return ErrNoRoom
	}
	a.used += n
	return nil
}

// Close releases the memory. A nil account has none.
func (a *Account) Close() {
	if a != nil {
		_ = a.take(-a.used) // less never fails
	}
}

// Estimates of the memory that a document takes, in bytes, beside that of its text. A row is an
// element of a list of the document, such as a device.
const (
	rowCost    = 512
	objectCost = 256
	itemCost   = 48 // of a list or an object
)

// errMore is the error for a document that does not end after its object.
var errMore = errors.New("more than one object")

// Read reads a document. The account has what it takes, and limits that and its text.
func Read[T any](r io.Reader, account *Account) (out T, err error) {
	g := &guard{from: r, account: account}
	d := json.NewDecoder(g)
	if err = d.Decode(&out); err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return out, nil
		}
		err = cmp.Or(err, errMore)
	}
	return out, cmp.Or(g.failed, err) // the JSON decoder may hide the former
}

// guard estimates the memory that a document takes while it is read.
type guard struct {
	from    io.Reader
	account *Account
	failed  error

	depth           int
	inText, escaped bool
}

// Read implements [io.Reader].
func (g *guard) Read(p []byte) (int, error) {
	if g.failed != nil {
		return 0, g.failed
	}
	n, err := g.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		g.failed = err
	}
	cost := int64(n)
	for _, b := range p[:n] {
		cost += g.see(b)
	}
	if g.failed == nil {
		g.failed = g.account.take(cost)
	}
	if g.failed != nil {
		return n, g.failed
	}
	return n, err //nolint:wrapcheck // it is the reader's
}

// see returns what a byte of the document costs beside itself.
func (g *guard) see(b byte) int64 {
	switch {
	case g.escaped:
		g.escaped = false
	case g.inText:
		g.inText, g.escaped = b != '"', b == '\\'
	case b == '"':
		g.inText = true
	case b == '{':
		if g.depth++; g.depth == 3 {
			return rowCost
		}
		return objectCost
	case b == '[':
		g.depth++
		return itemCost
	case b == '}', b == ']':
		g.depth--
	case b == ',':
		return itemCost
	}
	return 0
}
