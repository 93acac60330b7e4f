package recorder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// tally is how often an incident has happened. It is kept apart from its document, which is stored
// every minute: after a kill the ledger does not count an error again.
type tally struct {
	ID    string    `json:"id"`
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
}

// recently is for how long an incident's document may not have its last occurrence.
const recently = 2 * growEveryLate

// AppendState appends how often incidents have happened whose documents may not have it, as JSON.
// It is what state.Part asks for; clock is not needed. It is called by the goroutine that calls
// Record.
func (r *Recorder) AppendState(b []byte, _ func(time.Time) int64) []byte {
	r.kept = r.recent()
	return append(b, r.kept...)
}

// AppendChanges appends the same if it is not what was appended last.
func (r *Recorder) AppendChanges(b []byte, clock func(time.Time) int64) []byte {
	if bytes.Equal(r.kept, r.recent()) {
		return b
	}
	return r.AppendState(b, clock)
}

func (r *Recorder) recent() []byte {
	out := []tally{}
	for _, i := range r.incidents {
		if i.Count > 1 && r.published.Load().at.Sub(i.Last) < recently {
			out = append(out, tally{i.ID, i.Count, i.Last})
		}
	}
	text, _ := json.Marshal(out) // it has nothing that can't be encoded
	return text
}

// RestoreTallies takes over what AppendState appended, after Restore.
func (r *Recorder) RestoreTallies(from []byte) error {
	var all []tally
	if err := json.Unmarshal(from, &all); err != nil {
		return fmt.Errorf("decode how often incidents happened: %w", err)
	}
	for _, o := range all {
		n := slices.IndexFunc(r.incidents, func(i *Incident) bool { return i.ID == o.ID && i.Count < o.Count })
		if n < 0 {
			continue
		}
		again := *r.incidents[n]
		again.Count, again.Last = o.Count, later(again.Last, o.Last)
		r.replace(n, &again)
	}
	r.publish(time.Time{})
	return nil
}
