package kube

import (
	"sync"
	"time"
)

// joinedReport combines the reports of two feeds into one source, which is up if both are.
type joinedReport struct {
	report func(took time.Duration, err error)

	mu    sync.Mutex
	known [2]bool
	down  [2]bool
}

// half returns the report function of one of the feeds.
func (j *joinedReport) half(i int) func(took time.Duration, err error) {
	return func(took time.Duration, err error) {
		j.mu.Lock()
		j.known[i], j.down[i] = true, err != nil
		whole := j.known[0] && j.known[1] && !j.down[0] && !j.down[1]
		j.mu.Unlock()
		if err != nil || whole {
			j.report(took, err)
		}
	}
}
