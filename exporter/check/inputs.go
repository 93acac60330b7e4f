package check

import (
	"maps"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// Inputs collects the errors and rejections of a node's inputs. It is safe for concurrent use.
type Inputs struct {
	mu sync.Mutex
	found
}

// found has the collected errors and counts.
type found struct {
	errs       map[string]error // the last error of each input; nil: none
	failed     map[string]error // readers of the node's files
	rejections map[string]driver.Rejections
	held       holders.Holdings
}

var _ node.Metrics = (*Inputs)(nil)

// NewInputs returns a collection without findings.
func NewInputs() *Inputs {
	return &Inputs{found: found{
		errs: map[string]error{}, failed: map[string]error{}, rejections: map[string]driver.Rejections{},
	}}
}

// set changes what was collected.
func (i *Inputs) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

// Observe implements [node.Metrics].
func (i *Inputs) Observe(input string, _ time.Duration, err error, _ time.Time) {
	i.set(func() { i.errs[input] = err })
}

// ObserveReader implements [node.Metrics].
func (i *Inputs) ObserveReader(name string, _ time.Duration, err error, _ time.Time) {
	if err != nil {
		i.set(func() { i.failed[name] = err })
	}
}

// Absent implements [node.Metrics].
func (*Inputs) Absent(string, error) {}

// Reject implements [node.Metrics].
func (i *Inputs) Reject(rejected ...driver.Rejection) {
	i.set(func() {
		for _, one := range rejected {
			if i.rejections[one.Input] == nil {
				i.rejections[one.Input] = driver.Rejections{}
			}
			i.rejections[one.Input].Add(one.Reason, one.Count)
		}
	})
}

// RejectTotal implements [node.Metrics].
func (i *Inputs) RejectTotal(input string, totals driver.Rejections) {
	i.set(func() { i.rejections[input] = totals })
}

// Held implements [node.Metrics].
func (i *Inputs) Held(held *holders.Holdings) { i.set(func() { i.held = *held }) }

// copy returns a copy of the collected errors and counts.
func (i *Inputs) copy() found {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := found{
		errs: maps.Clone(i.errs), failed: maps.Clone(i.failed), rejections: map[string]driver.Rejections{}, held: i.held,
	}
	for input, counts := range i.rejections {
		out.rejections[input] = maps.Clone(counts)
	}
	return out
}
