package stall

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// state is the persistent state of a judge.
type state struct {
	Time  time.Time `json:"time"` // of the last readings
	Books []*book   `json:"books"`
	Idle  []idle    `json:"idle"`
}

// kept is an earlier process's knowledge about claims that have not been seen since.
type kept struct {
	books []*book
	until time.Time     // when it is forgotten
	away  time.Duration // from the last readings of that process to the first ones of this process
}

const (
	// keepFor is the time for which this knowledge is kept.
	keepFor = 10 * time.Minute
	// sameBegin is the possible difference between the start times that two processes have for the
	// same claim.
	sameBegin = time.Second
)

// AppendState appends the judge's state as JSON. It implements state.Part; clock is not needed.
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
		return b // JSON lacks such a number: the earlier state stays
	}
	return append(b, text...)
}

// AppendChanges appends the whole state if a window has ended since the last call.
func (j *Judge) AppendChanges(b []byte, clock func(time.Time) int64) []byte {
	if !j.changed {
		return b
	}
	return j.AppendState(b, clock)
}

// Restore restores the last state that a judge appended. The time until the next readings does not
// count, since the activity in it is unknown. The state of claims that are not seen within ten
// minutes is forgotten.
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

// forget drops the state of claims that have not been seen in time.
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

// adopt returns and removes the earlier state of a claim, nil if there is none.
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
	for _, t := range []*time.Time{&b.QuietSince, &b.AliveUntil, &b.Progress} {
		if !t.IsZero() {
			*t = t.Add(j.kept.away)
		}
	}
	j.books[key] = b
	return b
}
