package recorder

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// Receipt is what a claim used from its begin to its end. Fields that the FinOps Open Cost and
// Usage Specification (FOCUS 1.2) has are named as there.
type Receipt struct {
	ID                string    `json:"id"`
	ChargeCategory    string    `json:"ChargeCategory"` // Usage
	ChargePeriodStart time.Time `json:"ChargePeriodStart"`
	ChargePeriodEnd   time.Time `json:"ChargePeriodEnd"`
	ResourceID        string    `json:"ResourceId,omitempty"` // the UID of the claim
	ResourceName      string    `json:"ResourceName"`         // its name
	ResourceType      string    `json:"ResourceType"`         // ResourceClaim
	SubAccountName    string    `json:"SubAccountName"`       // its namespace
	// Partial says that the claim began before the exporter did: what it used before is not in the
	// receipt.
	Partial bool            `json:"partial,omitempty"`
	Pods    []ReceiptPod    `json:"pods"`
	Devices []ReceiptDevice `json:"devices"`
	Total   []Figure        `json:"total"` // of all devices
}

// ReceiptPod is a pod that used the claim.
type ReceiptPod struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
}

// ReceiptDevice is what a claim used of one device.
type ReceiptDevice struct {
	driver.ID
	Model string `json:"model,omitempty"`
	// Attribution is how the device was divided while several claims held it, else exclusive; of
	// several ways the least certain.
	Attribution string         `json:"attribution"`
	Figures     []Figure       `json:"figures"`
	Peaks       []Figure       `json:"peaks,omitempty"`
	Errors      []ReceiptError `json:"errors,omitempty"`
}

// Figure is an amount and how far it may be off.
type Figure struct {
	Quantity         string            `json:"quantity"`
	Labels           map[string]string `json:"labels,omitempty"`
	ConsumedQuantity float64           `json:"ConsumedQuantity"`
	ConsumedUnit     string            `json:"ConsumedUnit"` // as of the metrics: seconds, joules, bytes
	// ErrorBound is how far, in the same unit, the true amount may be from ConsumedQuantity. Peaks
	// have none: a higher one between two readings is not seen.
	ErrorBound *float64 `json:"errorBound,omitempty"`
	// MeasuredSeconds is for how much of the claim's time the device was read.
	MeasuredSeconds float64 `json:"measuredSeconds,omitempty"`
	Source          string  `json:"source,omitempty"`
}

// ReceiptError is how often an error hit the claim.
type ReceiptError struct {
	Kind  string  `json:"kind"`
	Code  string  `json:"code,omitempty"`
	Count float64 `json:"count"`
}

// Valid reports whether a receipt that was read from a file can be one.
func (r *Receipt) Valid() bool {
	return r.ID != "" && r.ResourceName != "" && !r.ChargePeriodStart.IsZero() &&
		!r.ChargePeriodEnd.Before(r.ChargePeriodStart)
}

const (
	// MaxReceipts bounds the receipts that are kept: the newest.
	MaxReceipts = 256
	// receiptDelay is how long after its end a receipt of a claim is made: sources that refresh every
	// 30 s have told by then what they counted until the end.
	receiptDelay = 40 * time.Second
)

// books follow what each claim that holds a device is charged, for its receipt.
type books struct {
	interval time.Duration
	began    time.Time // of the recorder
	claims   map[*ledger.HolderKey]*claimBook
	devices  map[driver.ID]*deviceCounts
}

// deviceCounts are the counters of a device at this tick, and what they counted since the tick
// before.
type deviceCounts struct {
	of     *ledger.Device
	parent *deviceCounts
	counts map[figureKey]*count
	guess  string // how it is divided; "": exactly
}

type figureKey struct {
	quantity driver.Quantity
	labels   driver.Labels
}

type count struct {
	total, more  float64
	rose, before float64   // the last increase, and the one before that
	at           time.Time // the tick at which it was read last
	elapsed      float64   // seconds between that and the time before
	integral     bool
	source       string
	rate         float64 // the highest that was seen
}

// claimBook is what a claim is charged for one device.
type claimBook struct {
	row         ledger.Holder              // the latest
	model       string                     // of the device
	base        map[*ledger.Series]float64 // at the end of the time that another receipt has
	from        time.Time
	allocated   float64 // in that receipt
	figures     map[figureKey]*figure
	attribution string
	issued      bool
	gone        bool // the snapshot has it no more
}

// figure adds up how far an amount may be off.
type figure struct {
	series   *ledger.Series
	value    float64
	begin    float64 // what the device counted in the intervals in which the claim may have begun
	begun    int     // how many these are so far
	end      float64 // likewise in which it may have ended
	guess    float64 // divided among holders otherwise than they used it
	varies   float64 // of an integral: by what its gauge may have differed from a straight line
	gap      float64 // not measured
	measured float64 // seconds
	since    time.Time
	source   string
}

func newBooks(interval time.Duration) *books {
	return &books{interval: interval, claims: map[*ledger.HolderKey]*claimBook{}, devices: map[driver.ID]*deviceCounts{}}
}

// accounted reports whether a receipt has a quantity as a figure with an error bound.
func accounted(q driver.Quantity) bool {
	return q == driver.Energy || q == driver.ActiveSeconds || q == driver.IOBytes
}

// observe adds a snapshot, and returns the claims' books of which a receipt is due: those of one
// claim in each list.
func (b *books) observe(s *ledger.Snapshot) [][]*claimBook {
	if b.began.IsZero() {
		b.began = s.Time
	}
	b.countDevices(s)
	for _, c := range b.claims {
		c.gone = true
	}
	for i := range s.Claims {
		b.charge(&s.Claims[i], s.Time)
	}
	return b.due(s.Time)
}

// countDevices notes what each device counted since the tick before.
func (b *books) countDevices(s *ledger.Snapshot) {
	present := make(map[driver.ID]*deviceCounts, len(s.Devices))
	for i := range s.Devices {
		d := &s.Devices[i]
		c := b.devices[d.ID]
		if c == nil {
			c = &deviceCounts{counts: map[figureKey]*count{}}
		}
		c.of, c.guess = d, guessed(d)
		present[d.ID] = c
		for j := range d.Values {
			v := &d.Values[j]
			if !accounted(v.Quantity) {
				continue
			}
			key := figureKey{v.Quantity, v.Labels}
			n := c.counts[key]
			if n == nil {
				n = &count{total: v.Value, at: s.Time}
				c.counts[key] = n
			}
			n.read(v, s.Time)
		}
	}
	for _, c := range present {
		c.parent = nil
		if c.of.Parent != "" {
			c.parent = present[driver.ID{Driver: c.of.ID.Driver, Pool: c.of.ID.Pool, Device: c.of.Parent}]
		}
	}
	b.devices = present
}

func (n *count) read(v *ledger.Value, now time.Time) {
	n.source, n.integral = v.Source, strings.HasSuffix(v.Source, "(integral of its gauge)")
	n.elapsed = now.Sub(n.at).Seconds()
	n.at = now
	n.more, n.total = max(0, v.Value-n.total), v.Value
	if n.more > 0 {
		n.before, n.rose = n.rose, n.more
	}
	if n.elapsed > 0 {
		n.rate = max(n.rate, n.more/n.elapsed)
	}
}

// guessed returns how a device is divided, "" if what each claim has of it is measured.
func guessed(d *ledger.Device) string {
	if slices.ContainsFunc(d.Shares, func(s join.Share) bool { return s.Own != nil && s.Own.Unknown }) {
		return string(d.Attribution)
	}
	switch d.Attribution {
	case join.AttributionNone, join.AttributionExclusive, join.AttributionCPUs:
		return ""
	default:
		return string(d.Attribution)
	}
}

// charge adds a row of a claim.
func (b *books) charge(h *ledger.Holder, now time.Time) {
	c := b.claims[h.HolderKey]
	if c == nil {
		c = &claimBook{from: h.Born, figures: map[figureKey]*figure{}, attribution: string(join.AttributionExclusive)}
		b.claims[h.HolderKey] = c
	}
	if c.issued && h.Ended.IsZero() { // it holds the device again
		c.again(now)
	}
	c.row, c.gone = *h, false
	d := b.devices[h.Device]
	if d == nil || c.issued {
		return
	}
	c.model = d.of.Entry.Model
	if h.Ended.IsZero() && d.guess != "" {
		c.attribution = d.guess
	}
	for i := range h.Values {
		v := &h.Values[i]
		if accounted(v.Quantity) {
			c.add(d, v, now)
		}
	}
}

// again begins another receipt for a claim that was charged before.
func (c *claimBook) again(now time.Time) {
	base := map[*ledger.Series]float64{}
	for _, v := range c.row.Values {
		base[v.Series] = v.Value
	}
	*c = claimBook{
		base: base, allocated: c.row.Allocated, from: now, figures: map[figureKey]*figure{},
		attribution: string(join.AttributionExclusive),
	}
}

// add adds what a counter charged the claim since the tick before.
func (c *claimBook) add(d *deviceCounts, v *ledger.Value, now time.Time) {
	key := figureKey{v.Quantity, v.Labels}
	f := c.figures[key]
	value := v.Value - c.base[v.Series]
	if f == nil {
		f = &figure{since: c.from}
		c.figures[key] = f
	}
	more := max(0, value-f.value)
	f.series, f.value = v.Series, value
	n, guess := d.counts[key], d.guess != ""
	if n == nil && d.parent != nil { // a partition has its part of what its parent counts
		n, guess = d.parent.counts[key], true
	}
	if n == nil || !n.at.Equal(now) { // it is not read
		return
	}
	f.source = n.source
	ended := !c.row.Ended.IsZero()
	if !ended {
		if !n.integral || n.elapsed <= maxGap {
			f.measured += min(now.Sub(f.since).Seconds(), n.elapsed)
		}
		f.since = now
	}
	f.doubt(n, more, guess, ended)
}

// doubt adds to what may be wrong with the figure: of what the device counted since the tick
// before, the claim was charged so much.
func (f *figure) doubt(n *count, more float64, guess, ended bool) {
	if n.more > 0 && f.begun < edgeReadings {
		f.begun++
		f.begin = max(f.begin, n.more)
	}
	if n.more > 0 && (!ended || more > 0) {
		f.end = n.more
	}
	if more == 0 && n.more == 0 || ended && more == 0 {
		return
	}
	if guess {
		f.guess += max(more, n.more-more)
	}
	if n.integral {
		f.varies += math.Abs(n.rose - n.before)
		if n.elapsed > maxGap {
			f.gap += n.rate * n.elapsed
		}
	}
}

const (
	// edgeReadings is in how many readings after it was first seen a claim may have begun: its begin
	// is known to a fraction of a second.
	edgeReadings = 2
	// maxGap, in seconds, is the time between readings of a gauge from which on its integral is a
	// guess.
	maxGap = 5
)

// bound returns how far the figure may be off.
func (f *figure) bound(c *claimBook, rate float64) float64 {
	b := f.begin + f.end + f.guess + f.varies + f.gap
	if until := c.row.Ended; until.Sub(f.since) > 2*time.Second && f.series != nil { // not read until the end
		b += rate * until.Sub(f.since).Seconds()
	}
	return b
}

// due returns the books of the claims of which a receipt is due, and forgets those of which it was
// made.
func (b *books) due(now time.Time) [][]*claimBook {
	type claim struct{ namespace, name string }
	over := func(c *claimBook) bool {
		return c.gone || !c.row.Ended.IsZero() && now.Sub(c.row.Ended) >= receiptDelay
	}
	lists := map[claim][]*claimBook{}
	for key, c := range b.claims {
		switch {
		case c.issued && c.gone:
			delete(b.claims, key)
		case !c.issued && over(c):
			of := claim{key.Namespace, key.Name}
			lists[of] = append(lists[of], c)
		}
	}
	if len(lists) == 0 {
		return nil
	}
	open := map[claim]bool{}
	for key, c := range b.claims {
		if !c.issued && !over(c) {
			open[claim{key.Namespace, key.Name}] = true
		}
	}
	var out [][]*claimBook
	for of, list := range lists {
		if open[of] {
			continue
		}
		for _, c := range list {
			c.issued = true
			if c.row.Ended.IsZero() {
				c.row.Ended = now
			}
		}
		slices.SortFunc(list, func(x, y *claimBook) int { return x.row.Device.Compare(y.row.Device) })
		out = append(out, list)
	}
	slices.SortFunc(out, func(x, y []*claimBook) int {
		return cmp.Or(x[0].row.Ended.Compare(y[0].row.Ended), strings.Compare(x[0].row.Name, y[0].row.Name))
	})
	return out
}

// receipt returns the receipt of a claim.
func (b *books) receipt(list []*claimBook, holders []Holder, catalogue driver.Catalogue, number int) *Receipt {
	first := &list[0].row
	out := &Receipt{
		ChargeCategory: "Usage", ResourceType: "ResourceClaim", ResourceName: first.Name, SubAccountName: first.Namespace,
		ChargePeriodStart: list[0].from.UTC(), Pods: []ReceiptPod{}, Total: []Figure{},
	}
	for _, c := range list {
		if c.from.Before(out.ChargePeriodStart) {
			out.ChargePeriodStart = c.from.UTC()
		}
		if c.row.Ended.After(out.ChargePeriodEnd) {
			out.ChargePeriodEnd = c.row.Ended.UTC()
		}
		out.Partial = out.Partial || !c.from.After(b.began)
		device := b.deviceReceipt(c, catalogue)
		out.Devices = append(out.Devices, device)
		for _, f := range device.Figures {
			out.Total = plus(out.Total, f)
		}
	}
	for _, h := range holders {
		out.ResourceID = cmp.Or(out.ResourceID, h.ClaimUID)
		if pod := (ReceiptPod{h.Pod, h.PodUID}); !slices.Contains(out.Pods, pod) {
			out.Pods = append(out.Pods, pod)
		}
	}
	out.ID = newID(out.ChargePeriodEnd, number)
	return out
}

func (b *books) deviceReceipt(c *claimBook, catalogue driver.Catalogue) ReceiptDevice {
	out := ReceiptDevice{ID: c.row.Device, Model: c.model, Attribution: c.attribution}
	// The begin and the end are known to an interval at the worst.
	edges, held := 2*b.interval.Seconds(), c.row.Allocated-c.allocated
	out.Figures = append(out.Figures, Figure{
		Quantity: "allocated_seconds", ConsumedUnit: "seconds", ConsumedQuantity: held,
		ErrorBound: &edges,
	})
	for i := range c.row.Values {
		v := &c.row.Values[i]
		spec := catalogue.Spec(v.Quantity)
		f := Figure{
			Quantity: spec.Name, ConsumedUnit: spec.Unit, ConsumedQuantity: v.Value - c.base[v.Series],
			Labels: labelsOf(spec, v.Labels),
		}
		charged := c.figures[figureKey{v.Quantity, v.Labels}]
		switch {
		case charged != nil:
			rate := 0.0
			if d := b.devices[c.row.Device]; d != nil && d.counts[figureKey{v.Quantity, v.Labels}] != nil {
				rate = d.counts[figureKey{v.Quantity, v.Labels}].rate
			}
			bound := charged.bound(c, rate)
			f.ErrorBound, f.MeasuredSeconds, f.Source = &bound, min(charged.measured, held), charged.source
			out.Figures = append(out.Figures, f)
		case v.Quantity == driver.MemoryUsedPeak, v.Quantity == driver.PowerPeak:
			f.ConsumedQuantity = v.Value
			out.Peaks = append(out.Peaks, f)
		case v.Quantity == driver.Errors && f.ConsumedQuantity > 0:
			out.Errors = append(out.Errors, ReceiptError{v.Labels[0], v.Labels[1], f.ConsumedQuantity})
		case v.Quantity == driver.ThrottledSeconds:
			out.Figures = append(out.Figures, f)
		}
	}
	return out
}

func labelsOf(spec *driver.Spec, labels driver.Labels) map[string]string {
	var out map[string]string
	for n, l := range spec.Labels {
		if out == nil {
			out = map[string]string{}
		}
		out[l.Name] = labels[n]
	}
	return out
}

// plus adds a figure to a total. Throttled time is that of each device, and has no total.
func plus(total []Figure, f Figure) []Figure {
	if f.ErrorBound == nil {
		return total
	}
	for i := range total {
		t := &total[i]
		if t.Quantity == f.Quantity && maps.Equal(t.Labels, f.Labels) {
			sum := *t.ErrorBound + *f.ErrorBound
			t.ConsumedQuantity += f.ConsumedQuantity
			t.MeasuredSeconds += f.MeasuredSeconds
			t.ErrorBound = &sum
			return total
		}
	}
	f.Source = ""
	return append(total, f)
}

// Figure returns a figure of the total by its quantity, nil if there is none.
func (r *Receipt) Figure(quantity driver.Quantity) *Figure {
	i := slices.IndexFunc(r.Total, func(f Figure) bool { return f.Quantity == quantity.String() })
	if i < 0 {
		return nil
	}
	return &r.Total[i]
}
