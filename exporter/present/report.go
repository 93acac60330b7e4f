package present

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Report is a snapshot as /api/v1/snapshot serves it: with names, without zero hold, and complete
// whatever the series limit is. Times are RFC 3339 and omitted if unknown.
type Report struct {
	Time    time.Time      `json:"time"`
	Node    string         `json:"node"`
	Devices []DeviceReport `json:"devices"`
	// Claims are those that hold a device, or did within the retention. If several claims had the
	// same name, the earlier ones are at the end of the list.
	Claims []HolderReport `json:"claims"`
	// Pods are those that have held the device for --pod.min-lifetime. The younger pods of a workload
	// have one row together, with aggregated.
	Pods []HolderReport `json:"pods"`
	// YoungPods have held the device for less time. Gauges of their workloads' rows include them.
	// Counters of those rows include them once they have ended; if they grow older instead, they get
	// rows of their own in Pods.
	YoungPods []HolderReport `json:"youngPods,omitempty"`
	// Plugins are allocations of device plugins, which have no claim: one row without a name for each
	// namespace and device.
	Plugins []HolderReport `json:"devicePlugins,omitempty"`
	Series  int            `json:"series"`
	Dropped int            `json:"seriesDropped"`
}

// DeviceReport is a device with its holders and values.
type DeviceReport struct {
	driver.ID
	State            book.State         `json:"state"` // a state of the page
	Vendor           string             `json:"vendor,omitempty"`
	Model            string             `json:"model,omitempty"`
	UUID             string             `json:"uuid,omitempty"`
	PCI              string             `json:"pciBusID,omitempty"`
	Profile          string             `json:"profile,omitempty"` // of a partition
	Serial           string             `json:"serial,omitempty"`
	FirmwareVersion  string             `json:"firmwareVersion,omitempty"`
	DriverVersion    string             `json:"driverVersion,omitempty"`
	CUDAVersion      string             `json:"cudaVersion,omitempty"`
	NetDev           string             `json:"netDev,omitempty"`
	Parent           string             `json:"parent,omitempty"`
	Unlisted         bool               `json:"unlisted,omitempty"` // no ResourceSlice has it
	Taints           []TaintReport      `json:"taints,omitempty"`
	Multiple         bool               `json:"allowMultipleAllocations,omitempty"`
	Up               *bool              `json:"up,omitempty"`           // omitted: no source supports it
	Missing          join.MissingReason `json:"gap,omitempty"`          // why there is no telemetry
	HealthReason     string             `json:"healthReason,omitempty"` // why it is not healthy, by its driver
	Attribution      join.Attribution   `json:"attribution,omitempty"`
	Shares           []ShareReport      `json:"shares,omitempty"`
	AllocatedSeconds float64            `json:"allocatedSeconds"`
	Values           []ValueReport      `json:"values,omitempty"`
	// Divided are the quantities of a partition that its parent measures, and of which the
	// partition's claims get parts.
	Divided      []DividedReport `json:"divided,omitempty"`
	Unattributed []ValueReport   `json:"unattributed,omitempty"`
	LastError    *time.Time      `json:"lastError,omitempty"`
	// Traffic is the mean over the last ten seconds, over networks, from the flight recorder; omitted:
	// unknown.
	Traffic *float64 `json:"trafficBytesPerSecond,omitempty"`
}

// DividedReport is how a quantity of a parent is divided among its partitions' claims.
type DividedReport struct {
	Quantity string `json:"quantity"`
	Source   string `json:"source"` // SOURCE (divided), or SOURCE (divided by share)
}

// TaintReport is a taint of a device.
type TaintReport struct {
	Taint  string `json:"taint"`          // KEY=VALUE:EFFECT
	Source string `json:"source"`         // slice or rule
	Rule   string `json:"rule,omitempty"` // the name of the DeviceTaintRule
}

// ShareReport is one allocation of a device.
type ShareReport struct {
	Namespace string             `json:"namespace"`
	Claim     string             `json:"claim"` // empty: a device plugin allocated it
	ShareID   string             `json:"shareID,omitempty"`
	Request   string             `json:"request,omitempty"`
	Admin     bool               `json:"adminAccess,omitempty"`
	Weight    float64            `json:"weight"`
	Consumed  map[string]float64 `json:"consumedCapacity,omitempty"`
	// Tolerations of the device's taints, as KEY=VALUE:EFFECT; fields that match anything are
	// omitted.
	Tolerations []string `json:"tolerations,omitempty"`
	Pods        []string `json:"pods"`
	// Holds has, for each pod, since when and why it holds the device.
	Holds []HoldReport `json:"holds,omitempty"`
}

// HoldReport is why a pod holds a device, as far as the exporter knows.
type HoldReport struct {
	Pod string `json:"pod"` // NAMESPACE/NAME
	UID string `json:"uid,omitempty"`
	// Since is omitted if the pod held the device before the exporter started.
	Since  *time.Time          `json:"since,omitempty"`
	Reason podresources.Reason `json:"reason"`
	// ReasonSince is when the reason began to apply; omitted: when the hold began.
	ReasonSince *time.Time `json:"reasonSince,omitempty"`
}

// HolderReport is a claim's or a pod's part of one device.
type HolderReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Aggregated reports that the row is for the young pods of a workload. Name is
	// aggregated/KIND/NAME with the workload's kind and name, or aggregated/ if they are unknown.
	Aggregated bool   `json:"aggregated,omitempty"`
	UID        string `json:"uid,omitempty"`
	driver.ID
	// Since is when this claim or pod began to hold the device. No value includes earlier ones of the
	// name.
	Since            time.Time     `json:"since"`
	Ended            *time.Time    `json:"ended,omitempty"`
	LastActive       *time.Time    `json:"lastActive,omitempty"`
	LastError        *time.Time    `json:"lastError,omitempty"` // the last error of the device that hit the holder
	AllocatedSeconds float64       `json:"allocatedSeconds"`
	ShareSeconds     float64       `json:"allocatedShareSeconds"`
	Values           []ValueReport `json:"values,omitempty"`
	// Stall is whether a claim that keeps the device busy makes progress; omitted: the device can't
	// be judged.
	Stall *StallReport `json:"stall,omitempty"`
	// Traffic is that of the device which is the holder's part.
	Traffic *float64 `json:"trafficBytesPerSecond,omitempty"`
}

// StallReport is a verdict on whether a claim that keeps its device busy makes progress, and what
// it stands on.
type StallReport struct {
	Stalled *bool        `json:"stalled,omitempty"` // omitted: unknown
	Unknown stall.Reason `json:"unknown,omitempty"` // why it is unknown
	Text    string       `json:"text"`              // the verdict and its witnesses in words
	// Since is when the verdict became this one, and Before what it was.
	Since  time.Time `json:"since"`
	Before string    `json:"before,omitempty"`
	// WithoutProgress is the time in seconds since something showed progress, and Quiet is that of
	// dra_claim_quiet_seconds; omitted: unknown.
	WithoutProgress float64  `json:"withoutProgressSeconds"`
	Quiet           *float64 `json:"quietSeconds,omitempty"`
	// Progress are the signals of the device that last showed progress, Silent those that show none
	// of a stalled claim, and Missing the engines that are not measured.
	Progress []string `json:"progress,omitempty"`
	Silent   []string `json:"silent,omitempty"`
	Missing  []string `json:"missing,omitempty"`
	// Host are the signals of the claim's pods on the host that were read, and HostWork those that
	// show work.
	Host     []string `json:"host,omitempty"`
	HostWork []string `json:"hostWork,omitempty"`
	// Ranks is the number of devices of the workload on the node, of which Working show progress and
	// Still do nothing.
	Ranks   int `json:"ranks"`
	Working int `json:"working"`
	Still   int `json:"still"`
	// Peers are these devices if there are several, at most 16, with what each does.
	Peers []stall.Peer `json:"peers,omitempty"`
}

// ValueReport is a value of a quantity.
type ValueReport struct {
	Quantity string            `json:"quantity"`
	Labels   map[string]string `json:"labels,omitempty"`
	Value    float64           `json:"value"`
	Source   string            `json:"source,omitempty"`
}

// WriteReport writes the [Report] of a snapshot as JSON, without keeping all of it in memory.
func WriteReport(w io.Writer, s *exposition.Snapshot, c Config) error {
	r := newReporter(s, c)
	o := &object{w: w}
	o.field("time", s.Time.UTC())
	o.field("node", c.Node)
	list(o, "devices", len(s.Devices), func(i int) DeviceReport { return r.device(&s.Devices[i]) })
	for _, part := range []struct {
		name            string
		kind            recorder.OwnerKind
		holders, behind []book.Holder
		always          bool
	}{
		{"claims", recorder.OfClaim, s.Claims, s.EarlierClaims, true},
		{"pods", recorder.OfPod, s.Pods, s.EarlierPods, true},
		{"youngPods", recorder.OfPod, s.Young, nil, false},
		{"devicePlugins", "", s.Plugins, nil, false},
	} {
		n := len(part.holders)
		if !part.always && n == 0 {
			continue
		}
		list(o, part.name, n+len(part.behind), func(i int) HolderReport {
			if i < n {
				return r.present(part.kind, &part.holders[i])
			}
			return r.holder(&part.behind[i-n])
		})
	}
	o.field("series", s.Series)
	o.field("seriesDropped", s.Dropped)
	return o.end()
}

// reporter makes the rows of a report.
type reporter struct {
	view    view
	traffic map[recorder.Owner]float64
}

func newReporter(s *exposition.Snapshot, c Config) *reporter {
	r := &reporter{view: newView(s, c)}
	if c.Recorder != nil {
		r.traffic = c.Recorder.Traffic()
	}
	return r
}

// trafficOf returns the traffic of a device, claim or pod; nil: unknown.
func (r *reporter) trafficOf(owner recorder.Owner) *float64 {
	if rate, known := r.traffic[owner]; known {
		return &rate
	}
	return nil
}

func (r *reporter) device(d *book.Device) DeviceReport {
	h := &d.Entry.Hardware
	out := DeviceReport{
		ID: d.ID, State: r.view.states[d.ID], Vendor: h.Vendor, Model: h.Model, UUID: h.UUID, PCI: h.PCI, NetDev: h.NetDev,
		Profile: h.Profile, Serial: h.Serial, FirmwareVersion: h.FirmwareVersion, DriverVersion: h.DriverVersion,
		CUDAVersion: h.CUDAVersion,
		Parent:      d.Parent,
		Unlisted:    d.Entry.Unlisted,
		Multiple:    d.Entry.Shareable, Missing: d.Missing, HealthReason: d.HealthReason, Attribution: d.Attribution,
		AllocatedSeconds: d.Allocated,
		Values:           r.values(d.Values), Unattributed: r.values(d.Unattributed), LastError: recorder.Moment(d.LastError),
		Traffic: r.trafficOf(recorder.Owner{Kind: recorder.OfDevice, Device: d.ID}),
	}
	if d.Up != book.UpUnknown {
		up := d.Up == book.UpNow
		out.Up = &up
	}
	for _, s := range d.Divided {
		out.Divided = append(out.Divided, DividedReport{r.view.catalogue.Spec(s.Quantity).Name, s.Origin.String()})
	}
	for _, t := range d.Entry.Taints {
		out.Taints = append(out.Taints, TaintReport{Taint: t.String(), Source: t.Source(), Rule: t.Rule})
	}
	for i := range d.Shares {
		out.Shares = append(out.Shares, shareReport(&d.Shares[i]))
	}
	return out
}

func shareReport(s *join.Share) ShareReport {
	r := ShareReport{
		Namespace: s.Claim.Namespace, Claim: s.Claim.Name, ShareID: s.ShareID, Request: s.Request, Admin: s.Admin,
		Weight:      s.Weight,
		Tolerations: s.Tolerations, Pods: []string{},
	}
	for _, c := range s.Consumed {
		if r.Consumed == nil {
			r.Consumed = map[string]float64{}
		}
		r.Consumed[c.Resource] = c.Value
	}
	for _, p := range s.Pods {
		r.Pods = append(r.Pods, p.Namespace+"/"+p.Name)
	}
	for h := range holds(s) {
		r.Holds = append(r.Holds, HoldReport{
			Pod: h.Namespace + "/" + h.Name, UID: h.UID, Since: recorder.Moment(h.Hold.From), Reason: h.Hold.Reason,
			ReasonSince: recorder.Moment(h.Hold.Since),
		})
	}
	return r
}

// holds yields one holder for each pod of a share, if it is known since when and why the pod holds
// it.
func holds(s *join.Share) iter.Seq[*podresources.Holder] {
	return func(yield func(*podresources.Holder) bool) {
		for i := range s.Holders {
			h := &s.Holders[i]
			again := i > 0 && s.Holders[i-1].Pod == h.Pod && s.Holders[i-1].UID == h.UID
			if h.Hold != nil && !again && !yield(h) {
				return
			}
		}
	}
}

func (r *reporter) holder(h *book.Holder) HolderReport {
	return HolderReport{
		Namespace: h.Namespace, Name: h.Name, Aggregated: h.IsAggregated(), UID: h.UID, ID: h.Device, Since: h.Born.UTC(),
		AllocatedSeconds: h.Allocated, ShareSeconds: h.Share, Values: r.values(h.Values), Ended: recorder.Moment(h.Ended),
		LastActive: recorder.Moment(h.LastActive), LastError: recorder.Moment(h.LastError),
	}
}

// present returns a holder of this moment, with its traffic and the verdict on its progress.
func (r *reporter) present(kind recorder.OwnerKind, h *book.Holder) HolderReport {
	out := r.holder(h)
	out.Traffic = r.trafficOf(recorder.Owner{Kind: kind, Namespace: h.Namespace, Name: h.Name, Device: h.Device})
	if v, judged := r.view.of.Stalled[h.HolderKey]; judged {
		out.Stall = stallReport(&v)
	}
	return out
}

func (r *reporter) values(values []book.Value) []ValueReport {
	out := make([]ValueReport, 0, len(values))
	for i := range values {
		v := &values[i]
		spec := r.view.catalogue.Spec(v.Quantity)
		out = append(out, ValueReport{
			Quantity: spec.Name, Labels: recorder.LabelsOf(spec, v.Labels), Value: v.Value, Source: v.Origin.String(),
		})
	}
	return out
}

func stallReport(v *stall.Verdict) *StallReport {
	out := &StallReport{
		Unknown: v.Unknown, Text: progressOf(v), Since: v.Since.UTC(), Before: v.Before, WithoutProgress: v.For.Seconds(),
		Progress: texts(v.Progress), Silent: texts(v.Stalled), Missing: texts(v.Missing), Host: texts(v.Host),
		HostWork: texts(v.HostShows), Ranks: v.Ranks, Working: v.Working, Still: v.Still, Peers: v.Peers,
	}
	if v.Unknown == stall.Known {
		stalled := v.Stalled != nil
		out.Stalled = &stalled
	}
	if v.Quiet != stall.NoQuiet {
		seconds := v.Quiet.Seconds()
		out.Quiet = &seconds
	}
	return out
}

func texts[S fmt.Stringer](all []S) []string {
	var out []string
	for _, s := range all {
		out = append(out, s.String())
	}
	return out
}

// IncidentsReport is what /api/v1/incidents serves: open incidents first, then the others, the
// newest first.
type IncidentsReport struct {
	Node      string               `json:"node"`
	Incidents []*recorder.Incident `json:"incidents"`
	// Next is the parameter before of the request for the next incidents; omitted: there are none.
	Next string `json:"next,omitempty"`
}

// HistoryReport is what /api/v1/history serves: the values of the last ten minutes of a device, or
// of a claim's or pod's parts of devices, and the holders.
type HistoryReport struct {
	Node string `json:"node"`
	recorder.History
}

// Write writes the report as JSON, one series at a time.
func (r HistoryReport) Write(w io.Writer) error {
	o := &object{w: w}
	o.field("node", r.Node)
	o.field("holders", r.Holders)
	o.field("times", r.Times)
	list(o, "series", len(r.Series), func(i int) *recorder.ChartSeries { return &r.Series[i] })
	if r.Next > 0 {
		o.field("next", r.Next)
	}
	return o.end()
}

// ReceiptsReport is what /api/v1/receipts serves, the newest receipt first.
type ReceiptsReport struct {
	Node     string              `json:"node"`
	Receipts []*recorder.Receipt `json:"receipts"`
	// Next is the parameter before of the request for older receipts; omitted: there are none.
	Next string `json:"next,omitempty"`
}

// object writes a JSON object field by field, and its lists element by element: encoding/json would
// keep the whole text in memory.
type object struct {
	w     io.Writer
	begun bool
	err   error
}

// field writes a field.
func (o *object) field(name string, value any) {
	o.name(name)
	o.value(value)
}

// name begins a field. The name must need no escaping.
func (o *object) name(name string) {
	if o.begun {
		o.text(",")
	} else {
		o.text("{")
	}
	o.begun = true
	o.text(`"` + name + `":`)
}

func (o *object) text(s string) {
	if o.err == nil {
		_, o.err = io.WriteString(o.w, s)
	}
}

func (o *object) value(v any) {
	if o.err == nil {
		o.err = json.NewEncoder(o.w).Encode(v)
	}
}

// list writes a field that is a list of n elements.
func list[T any](o *object, name string, n int, element func(int) T) {
	o.name(name)
	o.text("[")
	for i := range n {
		if i > 0 {
			o.text(",")
		}
		o.value(element(i))
	}
	o.text("]")
}

// end ends the object, and returns the first error of all calls.
func (o *object) end() error {
	o.text("}\n")
	return o.err
}
