// Package invariant checks an exporter's output, snapshot by snapshot, for what is always true:
// parts sum to wholes, counters never fall, admin access owns nothing, and the use of ended holders
// is not lost.
package invariant

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// settled is the default of [Checker].Settled: readings of a holder's last moments come later.
const settled = 30 * time.Second

// remembered is how long the exporter continues a device's counter that is not read.
const remembered = 10 * time.Minute

// Checker checks the snapshots of one run of the exporter in their order. It checks conservation of
// complete sums, so the run must be shorter than the exporter's retention. The zero value is ready
// to use.
type Checker struct {
	// Settled is how long after a holder's end its counters may rise; 0: half a minute.
	Settled time.Duration

	counters map[series]float64
	read     map[series]time.Time
	final    map[series]float64 // of holders that ended long enough ago
	parents  *parents           // of all partitions seen
	held     map[holder]bool    // all holders seen
	past     map[holder]past    // of the holders that have ended
	time     time.Time
	compared int
}

// series identifies a counter.
type series struct {
	of        string // device, unattributed, claim or pod
	namespace string
	name      string
	amount
}

// amount is a quantity of a device.
type amount struct {
	id       driver.ID
	quantity string
	labels   string
}

type holder struct {
	of, namespace, name string
	id                  driver.ID
}

// past is the end of a holder.
type past struct {
	ended time.Time
	since time.Time // begin of the snapshots after the end that all have its device; zero: the last one lacks it
	final bool
}

// Compared returns the number of compared sums: a check without comparisons proves nothing.
func (c *Checker) Compared() int { return c.compared }

// Check returns the errors of the next snapshot. It ignores a snapshot that is not newer than the
// last.
func (c *Checker) Check(r *present.Report) []error {
	if !r.Time.After(c.time) {
		return nil
	}
	c.time = r.Time
	if c.parents == nil {
		c.parents = newParents()
	}
	compared, wrong := c.parents.conserved(r)
	c.compared += compared
	wrong = append(wrong, adminOwnsNothing(r)...)
	now := c.parents.specs.countersOf(r)
	for s, before := range c.counters {
		after, ok := now[s]
		switch {
		case s.of == "device" && r.Time.Sub(c.read[s]) > remembered:
		case !ok && (s.of == "claim" || s.of == "pod"):
			wrong = append(wrong, fmt.Errorf("%+v is lost; it was %v", s, before))
		case ok && after < before && !near(after, before): // sums of rows may be rounded differently
			wrong = append(wrong, fmt.Errorf("%+v falls from %v to %v", s, before, after))
		}
	}
	if c.counters == nil {
		c.counters, c.read, c.held = map[series]float64{}, map[series]time.Time{}, map[holder]bool{}
		c.final, c.past = map[series]float64{}, map[holder]past{}
	}
	for s, value := range now {
		c.counters[s], c.read[s] = value, r.Time
	}
	return append(wrong, c.ended(r)...)
}

// ended checks that every holder seen is still present, and that past holders do not change.
func (c *Checker) ended(r *present.Report) []error {
	var wrong []error
	seen := map[holder]bool{}
	for of, rows := range rowsOf(r) {
		for h, n := range c.parents.specs.byName(of, rows) {
			seen[h], c.held[h] = true, true
			final := c.isFinal(r, n.ended, h)
			for s, value := range n.counters {
				if before, was := c.final[s]; was && final && !near(value, before) {
					wrong = append(wrong, fmt.Errorf("%+v changes from %v to %v after its end", s, before, value))
				}
				delete(c.final, s)
				if final {
					c.final[s] = value
				}
			}
		}
	}
	for h := range c.held {
		if !seen[h] {
			wrong = append(wrong, fmt.Errorf("%+v is lost", h))
		}
	}
	return wrong
}

// isFinal reports whether a holder ended so long ago that its counters are final: its device was
// read since then. A kubelet that restarts deletes the ResourceSlices of its node, and a driver
// that lost the API server publishes them again only a minute later. Until then, a device without
// holders is unknown, and is not read. Without slices, that lasts until the next holder. A later
// end belongs to another hold under the same names, which may have begun and ended between two
// snapshots.
func (c *Checker) isFinal(r *present.Report, ended *time.Time, h holder) bool {
	if ended == nil {
		delete(c.past, h)
		return false
	}
	p := c.past[h]
	if !p.ended.Equal(*ended) {
		p = past{ended: *ended}
	}
	read := func() bool {
		return slices.ContainsFunc(r.Devices, func(d present.DeviceReport) bool {
			return d.ID == h.id && d.Up != nil && *d.Up
		})
	}
	switch {
	case p.final:
	case !r.Time.After(p.ended) || !read():
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = r.Time
	default:
		p.final = r.Time.Sub(p.since) > cmp.Or(c.Settled, settled)
	}
	c.past[h] = p
	return p.final
}

// specs are the descriptions of the quantities, by name. They are made once, since that takes long.
type specs map[string]driver.Spec

func newSpecs() specs {
	out := specs{}
	for _, s := range driver.Standard() {
		out[s.Name] = s
	}
	return out
}

// Conserved checks that a device's value is the sum of its claims' parts and the unattributed part,
// that pods and claims have equal sums, and the same for the time in which the device was held.
// Claims and pods of a partition have parts of the parent's values that the partition does not
// measure (power, energy). It returns the number of compared sums. Partitions that are gone have no
// known parent: a run with such partitions needs a [Checker].
func Conserved(r *present.Report) (int, []error) { return newParents().conserved(r) }

// parents are the parents of partitions.
type parents struct {
	of     map[driver.ID]driver.ID
	itself map[amount]bool // quantities that partitions measure, or have measured
	specs  specs
}

func newParents() *parents {
	return &parents{of: map[driver.ID]driver.ID{}, itself: map[amount]bool{}, specs: newSpecs()}
}

func (p *parents) conserved(r *present.Report) (int, []error) {
	devices, claims, pods, nobody := map[amount]float64{}, map[amount]float64{}, map[amount]float64{}, map[amount]float64{}
	for i := range r.Devices {
		d := &r.Devices[i]
		add(devices, d.ID, d.Values)
		add(nobody, d.ID, d.Unattributed)
		devices[amount{id: d.ID, quantity: held}] = d.AllocatedSeconds
		if d.Parent != "" {
			p.of[d.ID] = driver.ID{Driver: d.Driver, Pool: d.Pool, Device: d.Parent}
		}
	}
	for a := range devices {
		p.itself[a] = true
	}
	addHolders(claims, r.Claims)
	addHolders(claims, r.Plugins)
	addHolders(pods, r.Pods)
	p.fold(claims)
	p.fold(pods)
	compared, wrong := 0, []error(nil)
	for a, whole := range devices {
		if a.quantity != held && p.specs[a.quantity].Sharing != driver.Additive {
			continue
		}
		compared++
		if parts := claims[a] + nobody[a]; !near(whole, parts) {
			wrong = append(wrong, fmt.Errorf("%+v: the device has %v, its claims and nobody %v", a, whole, parts))
		}
		if !near(claims[a], pods[a]) {
			wrong = append(wrong, fmt.Errorf("%+v: the claims have %v, the pods %v", a, claims[a], pods[a]))
		}
	}
	return compared, wrong
}

// fold adds the values of partitions' holders to those of the parents' holders, unless the
// partition measures, or has measured, the quantity: a source may miss a reading.
func (p *parents) fold(holders map[amount]float64) {
	for _, a := range slices.Collect(maps.Keys(holders)) {
		parent, isPart := p.of[a.id]
		if isPart && !p.itself[a] && p.specs[a.quantity].Divided {
			v := holders[a]
			delete(holders, a)
			a.id = parent
			holders[a] += v
		}
	}
}

// held stands for the time in which a device was held, divided among its holders.
const held = "held"

func add(to map[amount]float64, id driver.ID, values []present.ValueReport) {
	for i := range values {
		to[amountOf(id, &values[i])] += values[i].Value
	}
}

func addHolders(to map[amount]float64, rows []present.HolderReport) {
	for i := range rows {
		add(to, rows[i].ID, rows[i].Values)
		to[amount{id: rows[i].ID, quantity: held}] += rows[i].ShareSeconds
	}
}

func amountOf(id driver.ID, v *present.ValueReport) amount {
	labels, err := json.Marshal(v.Labels) // Sorted.
	if err != nil {
		labels = nil // A map of strings has no errors.
	}
	return amount{id, v.Quantity, string(labels)}
}

// adminOwnsNothing checks that admin access has no part of any device.
func adminOwnsNothing(r *present.Report) []error {
	var wrong []error
	for i := range r.Devices {
		sum, owners := 0.0, 0
		for _, s := range r.Devices[i].Shares {
			if s.Admin && s.Weight != 0 {
				wrong = append(wrong,
					fmt.Errorf("%v: the admin access of %s/%s has weight %v", r.Devices[i].ID, s.Namespace, s.Claim, s.Weight))
			}
			if !s.Admin {
				sum += s.Weight
				owners++
			}
		}
		if owners > 0 && !near(sum, 1) {
			wrong = append(wrong, fmt.Errorf("%v: the weights sum to %v", r.Devices[i].ID, sum))
		}
	}
	return wrong
}

// countersOf returns all values that must never fall.
func (q specs) countersOf(r *present.Report) map[series]float64 {
	out := map[series]float64{}
	for i := range r.Devices {
		d := &r.Devices[i]
		q.addCounters(out, series{of: "device"}, d.ID, d.Values)
		q.addCounters(out, series{of: "unattributed"}, d.ID, d.Unattributed)
		out[series{of: "device", amount: amount{id: d.ID, quantity: held}}] = d.AllocatedSeconds
	}
	for of, rows := range rowsOf(r) {
		for _, n := range q.byName(of, rows) {
			maps.Copy(out, n.counters)
		}
	}
	return out
}

// rowsOf returns the rows of claims and of pods.
func rowsOf(r *present.Report) map[string][]present.HolderReport {
	return map[string][]present.HolderReport{"claim": r.Claims, "pod": r.Pods}
}

// nameSums has the charges of all holders of one name for a device.
type nameSums struct {
	ended    *time.Time // end of the last one; nil: one holds the device
	counters map[series]float64
}

func (q specs) byName(of string, rows []present.HolderReport) map[holder]nameSums {
	out := map[holder]nameSums{}
	for i := range rows {
		h := &rows[i]
		key := holder{of, h.Namespace, h.Name, h.ID}
		n, known := out[key]
		switch {
		case !known:
			n = nameSums{ended: h.Ended, counters: map[series]float64{}}
		case n.ended != nil && (h.Ended == nil || h.Ended.After(*n.ended)):
			n.ended = h.Ended
		}
		for s, value := range q.holderCounters(of, h) {
			n.counters[s] += value
		}
		out[key] = n
	}
	return out
}

func (q specs) holderCounters(of string, h *present.HolderReport) map[series]float64 {
	out := map[series]float64{}
	s := series{of: of, namespace: h.Namespace, name: h.Name}
	q.addCounters(out, s, h.ID, h.Values)
	s.amount = amount{id: h.ID, quantity: "allocated"}
	out[s] = h.AllocatedSeconds
	s.quantity = held
	out[s] = h.ShareSeconds
	return out
}

func (q specs) addCounters(to map[series]float64, s series, id driver.ID, values []present.ValueReport) {
	for i := range values {
		if q[values[i].Quantity].Type == driver.Counter {
			s.amount = amountOf(id, &values[i])
			to[s] = values[i].Value
		}
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), 1e-9) }
