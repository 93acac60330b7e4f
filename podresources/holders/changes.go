package holders

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// changeLog has the changes of the last changeMemory, at most maxChanges, ordered by time.
type changeLog struct{ all []podresources.Change }

// add records a change, and reports whether it is new. Changes may be added in any order. An equal
// change of the same pod or CDI spec within sameChange is the same change: the first time is kept.
// A repeated removal is new if the kubelet was asked in between: its answer may still list the pod.
func (l *changeLog) add(c podresources.Change, asked time.Time) bool {
	i := len(l.all)
	for i > 0 && l.all[i-1].At.After(c.At) {
		i--
	}
	if l.repeats(i, &c, asked) {
		return false
	}
	all := slices.Insert(l.all, i, c)
	oldest := all[len(all)-1].At.Add(-changeMemory)
	drop := max(0, len(all)-maxChanges)
	for all[drop].At.Before(oldest) {
		drop++
	}
	l.all = slices.Delete(all, 0, drop)
	return true
}

// repeats reports whether c equals the last change, before index i, of the same pod or CDI spec.
func (l *changeLog) repeats(i int, c *podresources.Change, asked time.Time) bool {
	for i--; i >= 0 && c.At.Sub(l.all[i].At) <= sameChange; i-- {
		if before := &l.all[i]; before.PodUID == c.PodUID && slices.Equal(before.CDI, c.CDI) {
			asksBetween := before.At.Before(asked) && asked.Before(c.At)
			return before.Gone == c.Gone && (!c.Gone || !asksBetween)
		}
	}
	return false
}

// since returns the changes after a time, oldest first.
func (l *changeLog) since(t time.Time) []podresources.Change {
	i := len(l.all)
	for i > 0 && l.all[i-1].At.After(t) {
		i--
	}
	return slices.Clone(l.all[i:])
}
