package exporter

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Report is a snapshot as /api/v1/snapshot gives it: with nothing left out for --max-series, nothing held at zero, and
// names in place of positions. Times are RFC 3339, absent where unknown.
type Report struct {
	Time    time.Time      `json:"time"`
	Node    string         `json:"node"`
	Devices []DeviceReport `json:"devices"`
	Claims  []HolderReport `json:"claims"`
	Pods    []HolderReport `json:"pods"`
	// Plugins are what pods hold through device plugins, and no claim: a row a namespace and device, without a name.
	Plugins []HolderReport `json:"devicePlugins,omitempty"`
	Series  int            `json:"series"`
	Dropped int            `json:"seriesDropped"`
}

// DeviceReport is a device.
type DeviceReport struct {
	driver.ID
	Vendor           string        `json:"vendor,omitempty"`
	Model            string        `json:"model,omitempty"`
	UUID             string        `json:"uuid,omitempty"`
	PCI              string        `json:"pciBusID,omitempty"`
	NetDev           string        `json:"netDev,omitempty"`
	Parent           string        `json:"parent,omitempty"`
	Taints           []string      `json:"taints,omitempty"` // as KEY=VALUE:EFFECT
	Multiple         bool          `json:"allowMultipleAllocations,omitempty"`
	Up               *bool         `json:"up,omitempty"`  // absent: no source supports it
	Gap              Gap           `json:"gap,omitempty"` // why there is no telemetry
	Attribution      Attribution   `json:"attribution,omitempty"`
	Shares           []ShareReport `json:"shares,omitempty"`
	AllocatedSeconds float64       `json:"allocatedSeconds"`
	Values           []ValueReport `json:"values,omitempty"`
	Unattributed     []ValueReport `json:"unattributed,omitempty"`
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
	// Tolerations of the device's taints, as KEY=VALUE:EFFECT; a part that matches anything is left out.
	Tolerations []string `json:"tolerations,omitempty"`
	Pods        []string `json:"pods"`
}

// HolderReport is a claim or a pod, and what it has of one device.
type HolderReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	driver.ID
	Since            time.Time     `json:"since"`
	Ended            *time.Time    `json:"ended,omitempty"`
	LastActive       *time.Time    `json:"lastActive,omitempty"`
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

// NewReport makes the report of a snapshot.
func NewReport(s *Snapshot, node string) Report {
	names := newQuantityNames()
	r := Report{
		Time: s.Time, Node: node, Series: s.Series, Dropped: s.Dropped,
		Devices: []DeviceReport{}, Claims: []HolderReport{}, Pods: []HolderReport{},
	}
	for i := range s.Devices {
		r.Devices = append(r.Devices, names.device(&s.Devices[i]))
	}
	for i := range s.Claims {
		r.Claims = append(r.Claims, names.holder(&s.Claims[i]))
	}
	for i := range s.Pods {
		r.Pods = append(r.Pods, names.holder(&s.Pods[i]))
	}
	for i := range s.Plugins {
		r.Plugins = append(r.Plugins, names.holder(&s.Plugins[i]))
	}
	return r
}

// quantityNames are the names of the quantities and of their labels.
type quantityNames [driver.NumQuantities]struct {
	name   string
	labels []string
}

func newQuantityNames() *quantityNames {
	var n quantityNames
	for q := range driver.NumQuantities {
		n[q].name, n[q].labels = q.String(), labelNames(q)
	}
	return &n
}

func (n *quantityNames) device(d *DeviceSnapshot) DeviceReport {
	h := &d.Entry.Hardware
	r := DeviceReport{
		ID: d.ID, Vendor: h.Vendor, Model: h.Model, UUID: h.UUID, PCI: h.PCI, NetDev: h.NetDev, Parent: d.Parent,
		Multiple: d.Entry.Shareable, Gap: d.Gap, Attribution: d.Attribution, AllocatedSeconds: d.Allocated,
		Values: n.values(d.Values), Unattributed: n.values(d.Unattributed),
	}
	if d.Up != UpUnknown {
		up := d.Up == UpNow
		r.Up = &up
	}
	for _, t := range d.Entry.Taints {
		r.Taints = append(r.Taints, t.String())
	}
	for i := range d.Shares {
		r.Shares = append(r.Shares, shareReport(&d.Shares[i]))
	}
	return r
}

func shareReport(s *Share) ShareReport {
	r := ShareReport{
		Namespace: s.Claim.Namespace, Claim: s.Claim.Name, ShareID: s.ShareID, Request: s.Request, Admin: s.Admin, Weight: s.Weight,
		Tolerations: s.Tolerations,
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
	return r
}

func (n *quantityNames) holder(h *HolderSnapshot) HolderReport {
	r := HolderReport{
		Namespace: h.Namespace, Name: h.Name, ID: h.Device, Since: h.Born,
		AllocatedSeconds: h.Allocated, ShareSeconds: h.Share, Values: n.values(h.Values),
	}
	if !h.Ended.IsZero() {
		r.Ended = &h.Ended
	}
	if !h.LastActive.IsZero() {
		r.LastActive = &h.LastActive
	}
	return r
}

func (n *quantityNames) values(values []Value) []ValueReport {
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
