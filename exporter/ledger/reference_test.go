package ledger_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// reference is a naive ledger: it remembers who held what when, and charges each reading in steps
// of 50 ms. It requires that the kubelet answers at every tick.
type reference struct {
	born     time.Time
	answered time.Time
	holdings []refHolding
	last     map[refSeries]driver.Reading
	// meters decide what a counter counted between two readings if there are doubts about it, by the
	// package meter, which has its own tests. Nil: there are none, and it is decided here.
	meters map[refSeries]*meter.Counter
	sums   map[refKey]float64
	parts  map[refMoment]float64 // the sum of the utilization of a claim's devices
	// distributed is the time up to which each claim's utilization was in its distribution at the tick
	// before. Later first readings of a device add nothing before that time.
	distributed map[string]time.Time
}

// refMoment is one step of a claim.
type refMoment struct {
	claim string
	at    time.Time
}

type refHolding struct {
	device       driver.ID
	claim, share string
	uid          string // of the claim, as last known; empty: unknown
	pod          string
	admin        bool
	consumed     []driver.Amount
	from, to     time.Time // to is zero while it is held
	left         time.Time // the last sign of its end while the kubelet still listed it
}

type refSeries struct {
	device   driver.ID
	quantity driver.Quantity
}

// refKey names a sum by the family's prefix and metric, and the holder.
type refKey struct {
	device driver.ID
	family string
	holder string
}

// TestReference compares the ledger with the naive one, with counters whose falls leave no doubt.
func TestReference(t *testing.T) {
	t.Parallel()
	compareReference(t, false)
}

// TestReferenceOfDoubts compares what the ledger does with doubts about counters.
func TestReferenceOfDoubts(t *testing.T) {
	t.Parallel()
	compareReference(t, true)
}

func compareReference(t *testing.T, doubts bool) {
	rapid.Check(t, func(t *rapid.T) {
		w := exportertest.NewEmptyWorld(t)
		w.Plain = !doubts
		w.AddSource("a", driver.Energy, driver.Utilization, driver.IOBytes)
		config := exportertest.LedgerConfig()
		config.Retention = time.Hour
		l := ledger.New(config)
		ref := &reference{
			last: map[refSeries]driver.Reading{}, sums: map[refKey]float64{}, parts: map[refMoment]float64{},
			distributed: map[string]time.Time{},
		}
		if doubts {
			ref.meters = map[refSeries]*meter.Counter{}
		}
		for range rapid.IntRange(3, exportertest.Steps).Draw(t, "steps") {
			w.Step([]time.Duration{
				time.Second, time.Second, 100 * time.Millisecond, 2900 * time.Millisecond, 3 * time.Second, 7 * time.Second,
			})
			in := w.Input()
			s := l.Advance(join.Join(in), w.Now)
			x := exportertest.Scrape(t, exportertest.Whole(s))
			ref.advance(w, in)
			ref.compare(t, w, x)
			ref.compareDistributions(t, w, l, s)
		}
	})
}

func (f *reference) advance(w *exportertest.World, in join.Input) {
	now := w.Signs.At
	if f.born.IsZero() {
		f.born = now
	}
	f.hold(w, now)
	if !f.answered.IsZero() {
		for _, id := range f.devices(in) {
			f.allocate(id, f.answered, now)
		}
	}
	for _, s := range in.Sources {
		for _, sample := range s.Samples {
			for id, e := range in.Inventory {
				if e.UUID == sample.Hardware.UUID {
					for _, r := range sample.Readings {
						f.read(id, r)
					}
				}
			}
		}
	}
	f.answered = now
}

func (f *reference) devices(in join.Input) []driver.ID {
	var out []driver.ID
	for id := range in.Inventory {
		out = append(out, id)
	}
	return out
}

// hold begins and ends holdings between the answers.
func (f *reference) hold(w *exportertest.World, now time.Time) {
	kept := map[int]bool{}
	for _, a := range w.Seen {
		for _, h := range a.Holders {
			i := slices.IndexFunc(f.holdings, func(x refHolding) bool {
				return x.to.IsZero() && x.device == a.Device && x.claim == a.Claim.Name && x.share == a.ShareID && x.pod == h.Name
			})
			if i < 0 {
				i = len(f.holdings)
				f.holdings = append(f.holdings, refHolding{
					device: a.Device, claim: a.Claim.Name, share: a.ShareID, pod: h.Name, admin: a.Admin, consumed: a.Consumed,
					from: f.date(&w.Signs, now, h.Name, a.Claim.Name, false, time.Time{}),
				})
				if f.answered.IsZero() {
					f.holdings[i].from = time.Time{}
				}
			}
			i = f.identify(i, a.ClaimUID)
			kept[i] = true
		}
	}
	for i := range f.holdings {
		if x := &f.holdings[i]; x.to.IsZero() && !kept[i] {
			x.to = f.date(&w.Signs, now, x.pod, x.claim, true, x.left)
		}
	}
	f.inherit()
	for _, c := range w.Signs.Changes {
		for i := range f.holdings {
			x := &f.holdings[i]
			isNew := c.At.After(f.answered) && !c.At.After(now)
			if kept[i] && isNew && c.Gone && about(c, x.pod, x.claim) && !c.At.Before(x.from) {
				x.left = c.At
			}
		}
	}
}

// identify takes in the UID of a holding's claim, and returns the index of the holding that then
// holds. A claim is a UID: if it changes, another claim of that name has the device since the last
// answer, as the time before that is charged already.
func (f *reference) identify(i int, uid string) int {
	x := &f.holdings[i]
	if uid == "" || x.uid == uid {
		return i
	}
	if x.uid == "" || x.admin {
		x.uid = uid
		return i
	}
	next := *x
	next.uid, next.from, x.to = uid, f.answered, f.answered
	f.holdings = append(f.holdings, next)
	return len(f.holdings) - 1
}

// inherit gives holdings of claims without a known UID that of another holding of the claim without
// a gap before them: as long as no other UID is known, it is the same claim.
func (f *reference) inherit() {
	for i := range f.holdings {
		for _, o := range f.holdings {
			x := &f.holdings[i]
			gap := !o.to.IsZero() && o.to.Before(x.from)
			if x.uid == "" && o.device == x.device && o.claim == x.claim && !gap {
				x.uid = o.uid
			}
		}
	}
}

// date returns when a pod began or ended a hold. left is the last sign of its end before the last
// answer, which still listed the pod.
func (f *reference) date(signs *holders.Signs, now time.Time, pod, claim string, gone bool, left time.Time) time.Time {
	var found []time.Time
	shortlyBefore := false
	for _, c := range signs.Changes {
		switch {
		case c.Gone != gone || !about(c, pod, claim) || c.At.After(now):
		case c.At.After(f.answered):
			found = append(found, c.At)
		case f.answered.Sub(c.At) <= 2*time.Second:
			shortlyBefore = true
		}
	}
	switch {
	case len(found) > 0 && gone:
		return found[0]
	case len(found) > 0:
		return found[len(found)-1]
	case shortlyBefore && !gone, gone && signs.Watched && f.answered.Sub(left) <= 2*time.Second:
		return f.answered
	case gone && signs.Watched:
		return now
	case now.Sub(f.answered) <= 3*time.Second:
		return f.answered.Add(now.Sub(f.answered) / 2)
	default:
		return now
	}
}

// about reports whether a change concerns the pod or the claim.
func about(c podresources.Change, pod, claim string) bool {
	return c.PodUID == "uid-"+pod || slices.Contains(c.CDI, "example.com/gpu="+claim)
}

// read charges what a reading adds to the reading before.
func (f *reference) read(id driver.ID, r driver.Reading) {
	series := refSeries{id, r.Quantity}
	last, have := f.last[series]
	if have && !r.At.After(last.At) {
		return
	}
	if m := f.meters[series]; m != nil && !r.At.After(m.Doubted.At) {
		return // the doubted reading is given again, which says nothing new
	}
	spec := r.Quantity.Spec()
	switch {
	case spec.Type == driver.Gauge:
		f.last[series] = r
		if have && r.At.Sub(last.At) <= 90*time.Second {
			f.integrate(id, last, r)
		}
	case !have:
		f.last[series] = r
		if r.Since.After(f.born) {
			f.spread(id, r.Quantity, r.Value, r.Since, r.At)
		}
		if f.meters != nil {
			f.meters[series] = &meter.Counter{}
			f.meters[series].Begin(r)
		}
	case f.meters == nil:
		f.last[series] = f.count(id, last, r)
	default:
		step := f.meters[series].Next(last, r, meter.Limits{Most: spec.MaxRate, Patient: spec.Failure})
		if step.Reason != "" {
			return
		}
		f.spread(id, r.Quantity, step.Amount, step.From, r.At)
		f.last[series] = step.Last
	}
}

// count charges what a counter counted between two readings, and returns the reading from which the
// next amount is counted.
func (f *reference) count(id driver.ID, last, r driver.Reading) driver.Reading {
	switch {
	case r.Since.After(last.At):
		f.spread(id, r.Quantity, r.Value, r.Since, r.At)
	case r.Value < last.Value/2: // a restart
		f.spread(id, r.Quantity, r.Value, last.At, r.At)
	case r.Value < last.Value: // the hardware fluctuates
		f.spread(id, r.Quantity, 0, last.At, r.At)
		r.Value = last.Value
	default:
		f.spread(id, r.Quantity, r.Value-last.Value, last.At, r.At)
	}
	return r
}

// integrate charges a gauge. It changes evenly from one reading to the next. If holders change in
// between, it jumps there, and at the first sign of the end of a holder that the kubelet still
// lists.
func (f *reference) integrate(id driver.ID, last, next driver.Reading) {
	cuts := []time.Time{last.At, next.At}
	for _, x := range f.holdings {
		for _, cut := range []time.Time{x.from, x.to} {
			if x.device == id && cut.After(last.At) && cut.Before(next.At) {
				cuts = append(cuts, cut)
			}
		}
	}
	var left time.Time
	for _, x := range f.holdings {
		leaves := x.device == id && !x.admin && x.to.IsZero() && x.left.After(last.At) && x.left.Before(next.At)
		if leaves && (left.IsZero() || x.left.Before(left)) {
			left = x.left
		}
	}
	if !left.IsZero() {
		cuts = append(cuts, left)
	}
	slices.SortFunc(cuts, time.Time.Compare)
	cuts = slices.CompactFunc(cuts, time.Time.Equal)
	for i := range len(cuts) - 1 {
		level := (last.Value + next.Value) / 2
		switch {
		case len(cuts) == 2:
		case i == 0:
			level = last.Value
		case i == len(cuts)-2:
			level = next.Value
		}
		f.spread(id, driver.ActiveSeconds, level*cuts[i+1].Sub(cuts[i]).Seconds(), cuts[i], cuts[i+1])
		if len(cuts) == 2 { // the distribution has this reading for all of the time
			level = next.Value
		}
		for at := cuts[i]; at.Before(cuts[i+1]); at = at.Add(exportertest.Grain) {
			claims, _ := f.holders(id, at)
			for claim, weight := range claims {
				if !at.Before(f.distributed[claim]) {
					f.parts[refMoment{claim, at}] += level * weight
				}
			}
		}
	}
}

// spread charges an amount in equal steps.
func (f *reference) spread(id driver.ID, q driver.Quantity, amount float64, from, to time.Time) {
	metric := q.Spec().Metric
	f.sums[refKey{id, "dra_device_" + metric, ""}] += amount
	n := int(to.Sub(from) / exportertest.Grain)
	for i := range n {
		claims, pods := f.holders(id, from.Add(time.Duration(i)*exportertest.Grain))
		here := amount / float64(n)
		if len(claims) == 0 {
			f.sums[refKey{id, "dra_device_unattributed_" + metric, ""}] += here
		}
		for claim, weight := range claims {
			f.sums[refKey{id, "dra_claim_" + metric, claim}] += here * weight
		}
		for pod, weight := range pods {
			f.sums[refKey{id, "dra_pod_" + metric, pod}] += here * weight
		}
	}
}

func (f *reference) allocate(id driver.ID, from, to time.Time) {
	for at := from; at.Before(to); at = at.Add(exportertest.Grain) {
		claims, pods := f.holders(id, at)
		if len(claims) > 0 {
			f.sums[refKey{id, "dra_device_allocated_seconds_total", ""}] += exportertest.Grain.Seconds()
		}
		for claim, uids := range f.uidsAt(id, at) {
			f.sums[refKey{id, "dra_claim_allocated_seconds_total", claim}] += exportertest.Grain.Seconds() * float64(uids)
		}
		for claim, weight := range claims {
			f.sums[refKey{id, "dra_claim_allocated_share_seconds_total", claim}] += exportertest.Grain.Seconds() * weight
		}
		for pod, weight := range pods {
			f.sums[refKey{id, "dra_pod_allocated_seconds_total", pod}] += exportertest.Grain.Seconds()
			f.sums[refKey{id, "dra_pod_allocated_share_seconds_total", pod}] += exportertest.Grain.Seconds() * weight
		}
	}
}

// uidsAt returns the number of claims of each name that hold a device at a time. The last share of
// one may end while another one of that name has the others: both have the time. A share is of one
// claim, that of its present pods.
func (f *reference) uidsAt(id driver.ID, at time.Time) map[string]int {
	shares := map[[2]string]string{}
	for _, x := range f.holdings {
		if x.device == id && !x.admin && !x.from.After(at) && (x.to.IsZero() || at.Before(x.to)) {
			key := [2]string{x.claim, x.share}
			if _, known := shares[key]; !known || x.to.IsZero() {
				shares[key] = x.uid
			}
		}
	}
	out, seen := map[string]int{}, map[[2]string]bool{}
	for share, uid := range shares {
		if key := [2]string{share[0], uid}; !seen[key] {
			seen[key] = true
			out[share[0]]++
		}
	}
	return out
}

// holders returns the parts of the claims and pods that hold a device at a time.
func (f *reference) holders(id driver.ID, at time.Time) (claims, pods map[string]float64) {
	shares := map[[2]string][]refHolding{}
	for _, x := range f.holdings {
		if x.device == id && !x.admin && !x.from.After(at) && (x.to.IsZero() || at.Before(x.to)) {
			key := [2]string{x.claim, x.share}
			shares[key] = append(shares[key], x)
		}
	}
	claims, pods = map[string]float64{}, map[string]float64{}
	for key, holdings := range shares {
		weight := f.weight(shares, key)
		claims[key[0]] += weight
		for _, x := range holdings {
			pods[x.pod] += weight / float64(len(holdings))
		}
	}
	return claims, pods
}

// weight returns the mean of the share's parts of the resources that all shares consume. Without
// such a resource, it returns an equal part.
func (f *reference) weight(shares map[[2]string][]refHolding, key [2]string) float64 {
	sum, resources := 0.0, 0
	for _, resource := range []string{"memory", "cores"} {
		total, consumers := 0.0, 0
		for _, holdings := range shares {
			if v := amountOf(holdings[0].consumed, resource); v > 0 {
				total += v
				consumers++
			}
		}
		if consumers == len(shares) {
			sum += amountOf(shares[key][0].consumed, resource) / total
			resources++
		}
	}
	if resources == 0 {
		return 1 / float64(len(shares))
	}
	return sum / float64(resources)
}

func amountOf(amounts []driver.Amount, resource string) float64 {
	for _, a := range amounts {
		if a.Resource == resource {
			return a.Value
		}
	}
	return 0
}

// compareDistributions compares the distributions of the claims' utilization with the steps up to
// the time that they cover.
func (f *reference) compareDistributions(t *rapid.T, w *exportertest.World, l *ledger.Ledger, s *book.Snapshot) {
	t.Helper()
	for _, h := range s.Claims {
		for i := range h.Distributions {
			d := &h.Distributions[i]
			until := l.Distributed(h.HolderKey, d.Quantity)
			seconds, sum, highest := 0.0, 0.0, 0.0
			for moment, value := range f.parts {
				if moment.claim == h.Name && moment.at.Before(until) {
					seconds += exportertest.Grain.Seconds()
					sum += value * exportertest.Grain.Seconds()
					highest = max(highest, value)
				}
			}
			seen := d.Histogram()
			if !exportertest.Close(seen.Seconds(), seconds, 0) || !exportertest.Close(seen.Sum(), sum, 0) ||
				!exportertest.Close(seen.Max(), highest, 0) {
				t.Fatalf("tick %d: %v of %s are %v s, sum %v, highest %v; the reference says %v, %v, %v", w.Tick,
					d.Quantity, h.Name, seen.Seconds(), seen.Sum(), seen.Max(), seconds, sum, highest)
			}
			f.distributed[h.Name] = until
		}
	}
}

// compare compares each counter with the reference. A counter may be absent only if the reference
// has 0.
func (f *reference) compare(t *rapid.T, w *exportertest.World, x exportertest.Scraped) {
	left := map[refKey]float64{}
	for key, v := range f.sums {
		if v > 0 {
			left[key] = v
		}
	}
	for _, family := range exposition.Families(driver.Standard()) {
		metric, who := exportertest.HolderOf(family.Name)
		if who == "" || family.Type != driver.Counter || !exportertest.Attributed(metric) {
			continue
		}
		for labels, v := range x[family.Name] {
			l := exportertest.ParseKey(labels)
			key := refKey{driver.ID{
				Driver: l["driver"], Pool: l["pool"], Device: l["device"],
			}, family.Name, l["resourceclaim_name"] + l["pod"]}
			must.That(t, exportertest.Close(v, f.sums[key], f.sums[refKey{key.device, "dra_device_" + metric, ""}]),
				"tick %d: %v is %v, the reference says %v", w.Tick, key, v, f.sums[key])
			delete(left, key)
		}
	}
	for key, v := range left {
		_, who := exportertest.HolderOf(key.family)
		must.That(t, who != "claim" && who != "pod", "tick %d: %v is not there, the reference says %v", w.Tick, key, v)
	}
}
