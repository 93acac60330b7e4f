package stall

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// state is what outlives the process.
type state struct {
	Time  time.Time `json:"time"` // until which it is of
	Books []*book   `json:"books"`
	Idle  []idle    `json:"idle"`
}

// kept is what another process knew of claims that were not seen since.
type kept struct {
	books []*book
	until time.Time     // when they are forgotten
	away  time.Duration // between the last readings of that process and the first ones of this
}

const (
	// keepFor is how long what another process knew waits for its claim to be seen.
	keepFor = 10 * time.Minute
	// sameBegin is by how much the begin of one claim may differ between two processes.
	sameBegin = time.Second
)

// AppendState appends what the judge knows, as JSON, so that another process can go on with it. It
// is what state.Part asks for; clock is not needed.
func (j *Judge) AppendState(b []byte, _ func(time.Time) int64) []byte {
	j.changed = false
	out := state{Time: j.now, Books: slices.Clone(j.kept.books), Idle: make([]idle, 0, len(j.idle))}
	for _, key := range slices.SortedFunc(maps.Keys(j.books), Key.compare) {
		out.Books = append(out.Books, j.books[key])
	}
	for _, id := range slices.SortedFunc(maps.Keys(j.idle), driver.ID.Compare) {
		out.Idle = append(out.Idle, j.idle[id])
	}
	text, err := json.Marshal(out)
	if err != nil {
		return b // a number that JSON does not have: what was written before is kept
	}
	return append(b, text...)
}

// AppendChanges appends all that the judge knows if a window has ended since the last call.
func (j *Judge) AppendChanges(b []byte, clock func(time.Time) int64) []byte {
	if !j.changed {
		return b
	}
	return j.AppendState(b, clock)
}

// Restore takes over what another judge knew, the last of what it appended. The time until the next
// readings is not counted: what the claims did then is not known. What is known of claims that are
// not seen for ten minutes is forgotten.
func (j *Judge) Restore(from []byte) error {
	var in state
	if err := json.Unmarshal(from, &in); err != nil {
		return fmt.Errorf("decode what is known of stalls: %w", err)
	}
	j.kept = kept{books: in.Books}
	j.now = in.Time
	for _, i := range in.Idle {
		j.idle[i.Device] = i
	}
	return nil
}

// forget forgets what another process knew of claims that do not come back.
func (j *Judge) forget(now time.Time) {
	if len(j.kept.books) == 0 {
		return
	}
	if j.kept.until.IsZero() {
		j.kept.until, j.kept.away = now.Add(keepFor), max(0, now.Sub(j.now))
	}
	if now.After(j.kept.until) {
		j.kept.books = nil
	}
}

// adopt returns what another process knew of a claim, nil if it knew nothing.
func (j *Judge) adopt(key Key) *book {
	n := slices.IndexFunc(j.kept.books, func(b *book) bool {
		return b.Namespace == key.Namespace && b.Claim == key.Claim && b.Device == key.Device &&
			b.Since.Sub(key.Since).Abs() <= sameBegin
	})
	if n < 0 {
		return nil
	}
	b := j.kept.books[n]
	j.kept.books = slices.Delete(j.kept.books, n, n+1)
	b.Key = key
	for _, t := range []*time.Time{&b.QuietSince, &b.DullSince} {
		if !t.IsZero() {
			*t = t.Add(j.kept.away)
		}
	}
	j.books[key] = b
	return b
}
