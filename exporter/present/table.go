package present

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// Figures are the state and values of a row. Unknown values are nil.
type Figures struct {
	State          book.State `json:"state"`
	Utilization    *float64   `json:"utilizationRatio,omitempty"`
	MemoryUsed     *float64   `json:"memoryUsedBytes,omitempty"`
	MemoryCapacity *float64   `json:"memoryCapacityBytes,omitempty"`
	Power          *float64   `json:"powerWatts,omitempty"`
	Temperature    *float64   `json:"temperatureCelsius,omitempty"` // the highest
	Energy         *float64   `json:"energyJoules,omitempty"`
	QuietSeconds   *float64   `json:"quietSeconds,omitempty"` // since a holder was last active
	Traffic        *float64   `json:"trafficBytesPerSecond,omitempty"`
}

// Device is a device, as tables show it. Unknown values are nil or empty.
type Device struct {
	Node     string `json:"node"`
	Driver   string `json:"driver"`
	Pool     string `json:"pool"`
	Device   string `json:"device"`
	Model    string `json:"model,omitempty"`
	Unlisted bool   `json:"unlisted,omitempty"` // no ResourceSlice has it
	Why      string `json:"gap,omitempty"`      // why there is no telemetry
	Figures
	Claims []string      `json:"claims"` // NAMESPACE/NAME, without admin access
	Pods   []string      `json:"pods"`
	Report *DeviceReport `json:"report"` // everything that the exporter reports about it

	From string `json:"-"` // the exporter
}

// String returns DRIVER/POOL/DEVICE.
func (d *Device) String() string { return d.Driver + "/" + d.Pool + "/" + d.Device }

// Devices returns a row for each device of the report from an exporter.
func Devices(r *Report, from string) []Device {
	active := map[[3]string]time.Time{}
	for _, holders := range [][]HolderReport{r.Claims, r.Plugins} {
		for i := range holders {
			h := &holders[i]
			key := [3]string{h.Driver, h.Pool, h.Device}
			if h.Ended == nil && h.LastActive != nil && h.LastActive.After(active[key]) {
				active[key] = *h.LastActive
			}
		}
	}
	catalogue := driver.Standard()
	rows := make([]Device, 0, len(r.Devices))
	for i := range r.Devices {
		d := &r.Devices[i]
		row := Device{
			Node: r.Node, Driver: d.Driver, Pool: d.Pool, Device: d.Device, Model: d.Model, Unlisted: d.Unlisted,
			Why: string(d.Missing), Figures: Figures{State: d.State, Traffic: d.Traffic}, Claims: []string{},
			Pods: []string{}, Report: d, From: from,
		}
		row.setAll(catalogue, d.Values)
		if last, ok := active[[3]string{d.Driver, d.Pool, d.Device}]; ok {
			quiet := max(0, r.Time.Sub(last).Seconds())
			row.QuietSeconds = &quiet
		}
		for _, s := range d.Shares {
			if s.Admin {
				continue
			}
			if s.Claim != "" {
				row.Claims = append(row.Claims, s.Namespace+"/"+s.Claim)
			}
			row.Pods = append(row.Pods, s.Pods...)
		}
		row.Claims, row.Pods = distinct(row.Claims), distinct(row.Pods)
		rows = append(rows, row)
	}
	return rows
}

// setAll sets the figures that are among values.
func (f *Figures) setAll(catalogue driver.Catalogue, values []ValueReport) {
	for _, v := range values {
		if q, known := catalogue.Named(v.Quantity); known {
			f.set(q, v.Value)
		}
	}
}

// TrafficText returns the traffic in its unit, "" if it is unknown.
func (f *Figures) TrafficText() string {
	if f.Traffic == nil {
		return ""
	}
	return scaled(*f.Traffic, "B/s", 1000)
}

// field returns where the figure of a quantity is kept; nil: no figure shows it.
func (f *Figures) field(q driver.Quantity) **float64 {
	switch q {
	case driver.Utilization:
		return &f.Utilization
	case driver.MemoryUsed:
		return &f.MemoryUsed
	case driver.MemoryCapacity:
		return &f.MemoryCapacity
	case driver.Power:
		return &f.Power
	case driver.Energy:
		return &f.Energy
	case driver.Temperature:
		return &f.Temperature
	default:
		return nil
	}
}

// set sets the figure of a quantity; of temperatures, the highest one stays.
func (f *Figures) set(q driver.Quantity, v float64) {
	if at := f.field(q); at != nil && (q != driver.Temperature || *at == nil || v > **at) {
		*at = &v
	}
}

// Text returns the figure of a quantity in its unit, "" if it is unknown. The memory that is used
// has its capacity.
func (f *Figures) Text(q driver.Quantity) string {
	at, spec := f.field(q), q.Spec()
	if at == nil || *at == nil {
		return ""
	}
	text := inUnit(**at, &spec)
	if q == driver.MemoryUsed && f.MemoryCapacity != nil {
		text += " of " + f.Text(driver.MemoryCapacity)
	}
	return text
}

// Quiet returns for how long no holder was active, "" if it is unknown or less than a second.
func (f *Figures) Quiet() string {
	if f.QuietSeconds == nil || *f.QuietSeconds < 1 {
		return ""
	}
	return Duration(*f.QuietSeconds)
}

// Holder is a claim, a pod, or a namespace with everything that its claims and pods hold. Its
// values are its parts of the devices': the utilization is the mean over devices, all others are
// sums.
type Holder struct {
	Node      string `json:"node,omitempty"` // of claims and pods
	Namespace string `json:"namespace"`
	Name      string `json:"name,omitempty"` // of claims and pods
	Figures
	HeldSeconds float64  `json:"heldSeconds"` // the longest hold
	Devices     []string `json:"devices"`     // DRIVER/POOL/DEVICE; for namespaces NODE/DRIVER/POOL/DEVICE
	Claims      []string `json:"claims"`      // NAMESPACE/NAME
	Pods        []string `json:"pods"`
	// Parts is what the exporter reports about it, by device; nil for namespaces.
	Parts []*HolderReport `json:"parts,omitempty"`

	From  string `json:"-"` // the exporter; "" for namespaces
	busy  float64
	reads int // number of its devices that report utilization
}

// String returns NAMESPACE/NAME, or the namespace.
func (h *Holder) String() string { return strings.TrimSuffix(h.Namespace+"/"+h.Name, "/") }

// links has the pods of each claim and the claims of each pod, by the devices' shares.
type links struct{ pods, claims map[string][]string }

func linksOf(r *Report) links {
	out := links{map[string][]string{}, map[string][]string{}}
	for i := range r.Devices {
		for _, s := range r.Devices[i].Shares {
			if s.Claim == "" {
				continue
			}
			claim := s.Namespace + "/" + s.Claim
			out.pods[claim] = append(out.pods[claim], s.Pods...)
			for _, pod := range s.Pods {
				out.claims[pod] = append(out.claims[pod], claim)
			}
		}
	}
	return out
}

// ClaimHolders returns a row for each claim of a report that holds a device.
func ClaimHolders(r *Report, from string) []Holder {
	between := linksOf(r)
	out := holders(r, from, ofNamed, r.Claims)
	for i := range out {
		out[i].Claims, out[i].Pods = []string{out[i].String()}, distinct(between.pods[out[i].String()])
	}
	return out
}

// PodHolders returns a row for each pod of a report that holds a device.
func PodHolders(r *Report, from string) []Holder {
	between := linksOf(r)
	out := holders(r, from, ofNamed, r.Pods, r.YoungPods)
	for i := range out {
		out[i].Claims, out[i].Pods = distinct(between.claims[out[i].String()]), []string{out[i].String()}
	}
	return out
}

// UnclaimedHolders returns a row for each namespace of a report with pods that hold devices by
// device plugins, without a claim. It has these devices and pods, and no name.
func UnclaimedHolders(r *Report, from string) []Holder {
	pods := map[string][]string{}
	for i := range r.Devices {
		for _, s := range r.Devices[i].Shares {
			if s.Claim == "" {
				pods[s.Namespace] = append(pods[s.Namespace], s.Pods...)
			}
		}
	}
	out := holders(r, from, func(part *HolderReport) bool { return part.Name == "" }, r.Plugins)
	for i := range out {
		out[i].Claims, out[i].Pods = []string{}, distinct(pods[out[i].Namespace])
	}
	return out
}

func ofNamed(part *HolderReport) bool { return part.Name != "" }

// holders returns a row for each holder of some that has not ended and is not aggregated.
func holders(r *Report, from string, some func(*HolderReport) bool, lists ...[]HolderReport) []Holder {
	states := map[string]book.State{}
	for i := range r.Devices {
		states[r.Devices[i].String()] = r.Devices[i].State
	}
	var out []Holder
	at, catalogue := map[string]int{}, driver.Standard()
	for _, list := range lists {
		for i := range list {
			part := &list[i]
			if part.Ended != nil || part.Aggregated || !some(part) {
				continue
			}
			key := part.Namespace + "/" + part.Name
			n, known := at[key]
			if !known {
				n = len(out)
				at[key] = n
				out = append(out, Holder{Node: r.Node, Namespace: part.Namespace, Name: part.Name, Devices: []string{}, From: from})
			}
			h, of := &out[n], Figures{State: states[part.String()], Traffic: part.Traffic}
			of.setAll(catalogue, part.Values)
			if part.LastActive != nil {
				quiet := max(0, r.Time.Sub(*part.LastActive).Seconds())
				of.QuietSeconds = &quiet
			}
			h.Parts, h.Devices = append(h.Parts, part), append(h.Devices, part.String())
			h.HeldSeconds = max(h.HeldSeconds, part.AllocatedSeconds)
			h.add(&of, 1)
		}
	}
	return out
}

// add adds the values of some devices.
func (h *Holder) add(of *Figures, devices int) {
	if h.State == "" || of.State != "" && book.CompareAttention(of.State, h.State) < 0 {
		h.State = of.State
	}
	if of.Utilization != nil {
		h.busy, h.reads = h.busy+*of.Utilization*float64(devices), h.reads+devices
		mean := min(math.MaxFloat64, h.busy/float64(h.reads))
		h.Utilization = &mean
	}
	h.MemoryUsed, h.Power = sum(h.MemoryUsed, of.MemoryUsed), sum(h.Power, of.Power)
	h.Energy, h.Traffic = sum(h.Energy, of.Energy), sum(h.Traffic, of.Traffic)
	if of.QuietSeconds != nil && (h.QuietSeconds == nil || *of.QuietSeconds < *h.QuietSeconds) {
		h.QuietSeconds = of.QuietSeconds
	}
}

// sum adds known values.
func sum(a, b *float64) *float64 {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	default:
		total := min(math.MaxFloat64, *a+*b) // JSON has no infinity
		return &total
	}
}

// NamespaceHolders sums the claims of each namespace, and what its pods hold without a claim, over
// all nodes. A claim with pods on several nodes counts once, and so does a device.
func NamespaceHolders(claims []Holder) []Holder {
	var out []Holder
	at := map[string]int{}
	for i := range claims {
		c := &claims[i]
		n, known := at[c.Namespace]
		if !known {
			n = len(out)
			at[c.Namespace] = n
			out = append(out, Holder{Namespace: c.Namespace})
		}
		h := &out[n]
		h.add(&c.Figures, max(1, c.reads))
		h.HeldSeconds = max(h.HeldSeconds, c.HeldSeconds)
		for _, device := range c.Devices {
			h.Devices = append(h.Devices, c.Node+"/"+device)
		}
		h.Claims, h.Pods = append(h.Claims, c.Claims...), append(h.Pods, c.Pods...)
	}
	for i := range out {
		h := &out[i]
		h.Devices, h.Claims, h.Pods = distinct(h.Devices), distinct(h.Claims), distinct(h.Pods)
	}
	return out
}

// DeviceNames returns the names of the devices without driver and pool.
func (h *Holder) DeviceNames() []string {
	out := make([]string, 0, len(h.Devices))
	for _, id := range h.Devices {
		out = append(out, id[strings.LastIndex(id, "/")+1:])
	}
	return out
}

// StateText returns the state, with the reason why there is no telemetry.
func (d *Device) StateText() string {
	if d.State == book.StateUnmeasured && d.Why != "" {
		return string(d.State) + " (" + d.Why + ")"
	}
	return string(d.State)
}

// CountStates returns the number of devices, and of those in states that need attention.
func CountStates(devices []Device) string {
	held, counts := 0, map[book.State]int{}
	for i := range devices {
		counts[devices[i].State]++
		if len(devices[i].Pods) > 0 {
			held++
		}
	}
	out := []string{Count(len(devices), "device") + fmt.Sprintf(", %d held", held)}
	for _, s := range alarming() {
		if n := counts[s]; n > 0 {
			out = append(out, countOf(n, s))
		}
	}
	return strings.Join(out, ", ")
}

// alarming returns the states that need attention, the worst first.
func alarming() []book.State {
	return []book.State{book.StateUnhealthy, book.StateStalled, book.StateQuiet, book.StateUnmeasured}
}

// countOf formats a number of devices in a state.
func countOf(n int, state book.State) string { return fmt.Sprintf("%d %s", n, state) }
