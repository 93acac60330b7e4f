package web

import (
	"io"
	"iter"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Report is a snapshot as /api/v1/snapshot serves it: complete whatever the series limit is,
// without zero hold, and with names. Times are RFC 3339 and omitted if unknown.
type Report struct {
	Time    time.Time      `json:"time"`
	Node    string         `json:"node"`
	Devices []DeviceReport `json:"devices"`
	// Claims are those that hold a device, or did within the retention. Of a name that several had one
	// after the other the newest comes first; the earlier ones are at the end of the list.
	Claims []HolderReport `json:"claims"`
	// Pods are those that have held the device for --pod.min-lifetime; the younger ones of a workload
	// are in one row, with aggregated.
	Pods []HolderReport `json:"pods"`
	// YoungPods are younger. Of gauges, their parts are in the rows of their workloads too; of
	// counters they come to those when they end, or have rows of their own when they are older.
	YoungPods []HolderReport `json:"youngPods,omitempty"`
	// Plugins are allocations of device plugins, which have no claim: a row a namespace and device,
	// without a name.
	Plugins []HolderReport `json:"devicePlugins,omitempty"`
	Series  int            `json:"series"`
	Dropped int            `json:"seriesDropped"`
}

// DeviceReport is a device.
type DeviceReport struct {
	driver.ID
	State            ledger.State       `json:"state"` // as the page calls it
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
	Unlisted         bool               `json:"unlisted,omitempty"` // it is in no ResourceSlice
	Taints           []TaintReport      `json:"taints,omitempty"`
	Multiple         bool               `json:"allowMultipleAllocations,omitempty"`
	Up               *bool              `json:"up,omitempty"`           // omitted: no source supports it
	Missing          join.MissingReason `json:"gap,omitempty"`          // why there is no telemetry
	HealthReason     string             `json:"healthReason,omitempty"` // why it is not healthy, in its driver's words
	Attribution      join.Attribution   `json:"attribution,omitempty"`
	Shares           []ShareReport      `json:"shares,omitempty"`
	AllocatedSeconds float64            `json:"allocatedSeconds"`
	Values           []ValueReport      `json:"values,omitempty"`
	// Divided are the quantities of a partition that its parent measures, and of which the claims of
	// the partition have parts.
	Divided      []DividedReport `json:"divided,omitempty"`
	Unattributed []ValueReport   `json:"unattributed,omitempty"`
	LastError    *time.Time      `json:"lastError,omitempty"`
}

// DividedReport says where the parts come from that the claims of a partition have of a quantity of
// its parent.
type DividedReport struct {
	Quantity string `json:"quantity"`
	Source   string `json:"source"` // as SOURCE (divided), or SOURCE (divided by share)
}

// TaintReport is a taint of a device.
type TaintReport struct {
	Taint  string `json:"taint"`          // as KEY=VALUE:EFFECT
	Source string `json:"source"`         // slice or rule
	Rule   string `json:"rule,omitempty"` // the name of the DeviceTaintRule
}

// ShareReport is one allocation of a device.
type ShareReport struct {
	Namespace string             `json:"namespace"`
	Claim     string             `json:"claim"` // empty: by a device plugin
	ShareID   string             `json:"shareID,omitempty"`
	Request   string             `json:"request,omitempty"`
	Admin     bool               `json:"adminAccess,omitempty"`
	Weight    float64            `json:"weight"`
	Consumed  map[string]float64 `json:"consumedCapacity,omitempty"`
	// Tolerations of the device's taints, as KEY=VALUE:EFFECT; what matches anything is omitted.
	Tolerations []string `json:"tolerations,omitempty"`
	Pods        []string `json:"pods"`
	// Holds are since when and why each of the pods holds the device.
	Holds []HoldReport `json:"holds,omitempty"`
}

// HoldReport is why a pod is taken to hold a device.
type HoldReport struct {
	Pod string `json:"pod"` // NAMESPACE/NAME
	UID string `json:"uid,omitempty"`
	// Since is omitted where the pod held the device before the exporter started.
	Since  *time.Time          `json:"since,omitempty"`
	Reason podresources.Reason `json:"reason"`
	// ReasonSince is when that reason began; omitted: with the hold.
	ReasonSince *time.Time `json:"reasonSince,omitempty"`
}

// HolderReport is what a claim or a pod has of one device.
type HolderReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Aggregated says that the row is of the young pods of a workload, whose kind and name are in the
	// name: aggregated/KIND/NAME, or aggregated/ where they are unknown.
	Aggregated bool   `json:"aggregated,omitempty"`
	UID        string `json:"uid,omitempty"`
	driver.ID
	// Since is when this one of the name began to hold the device, and all else is its own.
	Since            time.Time     `json:"since"`
	Ended            *time.Time    `json:"ended,omitempty"`
	LastActive       *time.Time    `json:"lastActive,omitempty"`
	LastError        *time.Time    `json:"lastError,omitempty"` // of the device, that hit the holder
	AllocatedSeconds float64       `json:"allocatedSeconds"`
	ShareSeconds     float64       `json:"allocatedShareSeconds"`
	Values           []ValueReport `json:"values,omitempty"`
}

// ValueReport is a value of a quantity.
type ValueReport struct {
	Quantity string            `json:"quantity"`
	Labels   map[string]string `json:"labels,omitempty"`
	Value    float64           `json:"value"`
	Source   string            `json:"source,omitempty"`
}

// WriteReport writes the [Report] of a snapshot as JSON, without having all of it in memory.
// quietAfter is that of [ledger.Snapshot.States].
func WriteReport(w io.Writer, s *exposition.Snapshot, node string, quietAfter time.Duration) error {
	names := newQuantityNames(s.Catalogue.OrStandard())
	states := s.States(quietAfter)
	o := &object{w: w}
	o.field("time", s.Time.UTC())
	o.field("node", node)
	list(o, "devices", len(states), func(i int) DeviceReport { return names.device(&s.Devices[i], states[i]) })
	for _, part := range []struct {
		name            string
		holders, behind []ledger.Holder
		always          bool
	}{
		{"claims", s.Claims, s.EarlierClaims, true},
		{"pods", s.Pods, s.EarlierPods, true},
		{"youngPods", s.Young, nil, false},
		{"devicePlugins", s.Plugins, nil, false},
	} {
		n := len(part.holders)
		if !part.always && n == 0 {
			continue
		}
		list(o, part.name, n+len(part.behind), func(i int) HolderReport {
			if i < n {
				return names.holder(&part.holders[i])
			}
			return names.holder(&part.behind[i-n])
		})
	}
	o.field("series", s.Series)
	o.field("seriesDropped", s.Dropped)
	return o.end()
}

// quantityNames are the names of the quantities and of their labels.
type quantityNames []struct {
	name   string
	labels []string
}

func newQuantityNames(catalogue driver.Catalogue) quantityNames {
	names := make(quantityNames, len(catalogue))
	for q, spec := range catalogue {
		names[q].name = spec.Name
		for _, l := range spec.Labels {
			names[q].labels = append(names[q].labels, l.Name)
		}
	}
	return names
}

func (n quantityNames) device(d *ledger.Device, state ledger.State) DeviceReport {
	h := &d.Entry.Hardware
	r := DeviceReport{
		ID: d.ID, State: state, Vendor: h.Vendor, Model: h.Model, UUID: h.UUID, PCI: h.PCI, NetDev: h.NetDev,
		Profile: h.Profile, Serial: h.Serial, FirmwareVersion: h.FirmwareVersion, DriverVersion: h.DriverVersion,
		CUDAVersion: h.CUDAVersion,
		Parent:      d.Parent,
		Unlisted:    d.Entry.Unlisted,
		Multiple:    d.Entry.Shareable, Missing: d.Missing, HealthReason: d.HealthReason, Attribution: d.Attribution,
		AllocatedSeconds: d.Allocated,
		Values:           n.values(d.Values), Unattributed: n.values(d.Unattributed), LastError: moment(d.LastError),
	}
	if d.Up != ledger.UpUnknown {
		up := d.Up == ledger.UpNow
		r.Up = &up
	}
	for _, s := range d.Divided {
		r.Divided = append(r.Divided, DividedReport{n[s.Quantity].name, s.Source})
	}
	for _, t := range d.Entry.Taints {
		r.Taints = append(r.Taints, TaintReport{Taint: t.String(), Source: t.Source(), Rule: t.Rule})
	}
	for i := range d.Shares {
		r.Shares = append(r.Shares, shareReport(&d.Shares[i]))
	}
	return r
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
			Pod: h.Namespace + "/" + h.Name, UID: h.UID, Since: moment(h.Hold.From), Reason: h.Hold.Reason,
			ReasonSince: moment(h.Hold.Since),
		})
	}
	return r
}

// holds yields a holder of each pod of a share, if it is known since when and why it holds it.
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

func (n quantityNames) holder(h *ledger.Holder) HolderReport {
	r := HolderReport{
		Namespace: h.Namespace, Name: h.Name, Aggregated: h.IsAggregated(), UID: h.UID, ID: h.Device, Since: h.Born.UTC(),
		AllocatedSeconds: h.Allocated, ShareSeconds: h.Share, Values: n.values(h.Values),
	}
	r.Ended, r.LastActive, r.LastError = moment(h.Ended), moment(h.LastActive), moment(h.LastError)
	return r
}

// moment returns a time in UTC, nil for the zero time.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func (n quantityNames) values(values []ledger.Value) []ValueReport {
	out := make([]ValueReport, 0, len(values))
	for i := range values {
		v := &values[i]
		r := ValueReport{Quantity: n[v.Quantity].name, Value: v.Value, Source: v.Source}
		for j, label := range n[v.Quantity].labels {
			if r.Labels == nil {
				r.Labels = map[string]string{}
			}
			r.Labels[label] = v.Labels[j]
		}
		out = append(out, r)
	}
	return out
}
