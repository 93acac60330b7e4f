package podresources

import (
	"maps"
	"reflect"
	"sync"
)

// Resolver calls [Facts.Resolve], and remembers the last result: while the maps and the slice that
// it is given are the same ones, so is the result. None of them may ever change, nor may the
// result. The zero value is ready. It is safe for concurrent use.
type Resolver struct {
	mu       sync.Mutex
	facts    Facts
	listed   []Allocation
	resolved *Resolution // of both; nil: none yet
}

// Resolve returns who holds what, as [Facts.Resolve] does.
func (r *Resolver) Resolve(f Facts, listed []Allocation) Resolution {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resolved != nil && sameSlice(listed, r.listed) && sameMap(f.Claims, r.facts.Claims) &&
		sameMap(f.Pods, r.facts.Pods) && sameMap(f.Listed, r.facts.Listed) && maps.Equal(f.Exited, r.facts.Exited) {
		return *r.resolved
	}
	resolved := f.Resolve(listed)
	r.facts, r.listed, r.resolved = f, listed, &resolved
	return resolved
}

// sameMap reports whether both are the same map, not only equal ones.
func sameMap[K comparable, V any](a, b map[K]V) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}
