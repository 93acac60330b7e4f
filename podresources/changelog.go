package podresources

import (
	"slices"
	"sync"
	"time"
)

const (
	changeMemory = 10 * time.Minute // how long changes are kept, counted back from the newest
	maxChanges   = 4096

	// sameChange is the time within which the same sign tells of one change: a file that is written
	// in several steps, a folder that is seen twice.
	sameChange = time.Second
)

// ChangeLog keeps the changes of the last ten minutes, at most 4096. The zero value is ready; it is
// safe for concurrent use.
type ChangeLog struct {
	mu      sync.Mutex
	changes []Change // by time
}

// Add records a change, in any order of time. An equal change of the same pod or CDI spec within a
// second is the same change, whose first time is kept. Add reports whether the change is new.
func (l *ChangeLog) Add(c Change) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.changes)
	for i > 0 && l.changes[i-1].At.After(c.At) {
		i--
	}
	if l.repeats(i, c) {
		return false
	}
	l.changes = slices.Insert(l.changes, i, c)
	l.trim()
	return true
}

// repeats reports whether the last change of the same thing, of those before index i, already says
// what c says.
func (l *ChangeLog) repeats(i int, c Change) bool {
	for i--; i >= 0 && c.At.Sub(l.changes[i].At) <= sameChange; i-- {
		if before := &l.changes[i]; before.PodUID == c.PodUID && slices.Equal(before.CDI, c.CDI) {
			return before.Gone == c.Gone
		}
	}
	return false
}

// trim forgets what is too old, or too much.
func (l *ChangeLog) trim() {
	oldest := l.changes[len(l.changes)-1].At.Add(-changeMemory)
	drop := max(0, len(l.changes)-maxChanges)
	for l.changes[drop].At.Before(oldest) {
		drop++
	}
	l.changes = slices.Delete(l.changes, 0, drop)
}

// Since returns the changes after a time, oldest first.
func (l *ChangeLog) Since(t time.Time) []Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.changes)
	for i > 0 && l.changes[i-1].At.After(t) {
		i--
	}
	return slices.Clone(l.changes[i:])
}
