// Package decode reads JSON documents of exporters that may lie. It bounds the memory that they
// take, also for all documents together.
//
// Bounds (max…) are for what other exporters send.
package decode

import (
	"errors"
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
