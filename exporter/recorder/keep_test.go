package recorder

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// An incident that another process knew has happened as often as that process knew, also where its
// document does not have it yet, and not less often than its document has.
func TestTallies(t *testing.T) {
	at := time.Unix(1_800_000_000, 0).UTC()
	incident := func(id string, count int, last time.Time) *Incident {
		return &Incident{ID: id, Kind: XID, Onset: at, Detected: at, Last: last, Count: count}
	}
	r := New(Config{Interval: time.Second})
	now := at.Add(time.Hour)
	r.Restore([]*Incident{incident("a", 7, now.Add(-time.Second)), incident("b", 9, at), incident("c", 3, now)})
	r.publish(now)
	state := r.AppendState(nil, nil)
	more := r.AppendChanges(nil, nil)
	expect.That(t, len(more) == 0, "nothing has changed, and it appends %s", more)
	next := New(Config{Interval: time.Second})
	next.Restore([]*Incident{incident("a", 5, at), incident("b", 9, at), incident("c", 4, now)})
	must.Do(t, next.RestoreTallies(state))
	for id, want := range map[string]int{"a": 7, "b": 9, "c": 4} {
		i := next.Incident(id)
		expect.That(t, i.Count == want && (id != "a" || i.Last.Equal(now.Add(-time.Second))),
			"%s has happened %d times, last %v, want %d", id, i.Count, i.Last, want)
	}
	expect.That(t, next.RestoreTallies([]byte("?")) != nil, "a damaged state is no error")
}
