package recorder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// tally is the number of occurrences of an incident. It is kept apart from the document, which is
// stored once a minute: if the process is killed, the ledger does not count an error again.
type tally struct {
	ID    string    `json:"id"`
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
}

// recently is the time for which an incident's document may lack its last occurrence.
const recently = 2 * storeEvery

// AppendState appends, as JSON, the number of occurrences of incidents whose documents may lack
// some. It implements state.Part; clock is not needed. It must be called by the goroutine that
// calls Record.
func (r *Recorder) AppendState(b []byte, _ func(time.Time) int64) []byte {
	r.kept = r.recent()
	return append(b, r.kept...)
}

// AppendChanges is AppendState, but appends nothing if nothing has changed since the last call.
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
	text, _ := json.Marshal(out) // cannot fail: all types can be encoded
	return text
}

// RestoreTallies restores what AppendState appended. It must be called after Restore.
func (r *Recorder) RestoreTallies(from []byte) error {
	var all []tally
	if err := json.Unmarshal(from, &all); err != nil {
		return fmt.Errorf("decode numbers of occurrences of incidents: %w", err)
	}
	for _, o := range all {
		n := slices.IndexFunc(r.incidents, func(i *Incident) bool { return i.ID == o.ID && i.Count < o.Count })
		if n < 0 {
			continue
		}
		again := *r.incidents[n]
		again.Count, again.Last = o.Count, driver.Later(again.Last, o.Last)
		r.replace(n, &again)
	}
	r.publish(time.Time{})
	return nil
}
