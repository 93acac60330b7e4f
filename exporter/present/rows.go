// Package present turns a snapshot into what people and programs see of it: devices, claims, pods
// and incidents with their states, figures and texts. Pages, terminals and JSON lay it out. Every
// sentence and every unit that a person reads is here; test/layout checks that the packages that
// lay it out format none.
//
// Bounds (max…) are for what the kubelet and vendors' libraries send.
package present

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Source is the state of a source.
type Source struct {
	Name  string
	Fills []driver.Quantity // which it can read
	Down  driver.Reason     // why it is down; "": it is not
}

// Config is what people see of a node beside its snapshot.
type Config struct {
	Node       string
	Version    string // of the exporter
	Sources    []Source
	Recorder   *recorder.Recorder // nil: none
	QuietAfter time.Duration      // a device that was not used for this time is quiet
}

// NoRecorder is why there are neither incidents nor recordings.
const NoRecorder = "the flight recorder is off (--no-recorder)"

// Page is what the page shows of a snapshot, in this order. Its JSON is read by the gateway and by
// top, and is not an API.
type Page struct {
	Node       string       `json:"node"`
	Version    string       `json:"version"`
	Time       string       `json:"time"`                 // "": there is no snapshot yet
	Wrong      []finding    `json:"wrong"`                // states that need attention
	Sums       []fact       `json:"sums"`                 // of the node
	Everywhere []holderLine `json:"everywhere,omitempty"` // holders with admin access to most devices, in no row
	Tiles      []Tile       `json:"tiles"`
	Troubles   []trouble    `json:"troubles"`
	Devices    []DeviceRow  `json:"devices"`
	Claims     []HolderRow  `json:"claims"`
	Pods       []HolderRow  `json:"pods"`
	Ended      int          `json:"ended"` // number of claims and pods that have ended
	// More is the number of rows of claims and pods that are left out, since there are too many.
	More int `json:"more,omitempty"`
	// Incidents are the newest ones of the flight recorder.
	Incidents []IncidentRow `json:"incidents,omitempty"`
	// Unrecorded is why there are no incidents; "": incidents are recorded.
	Unrecorded string `json:"unrecorded,omitempty"`

	view

	recent recent
}

// view is a snapshot with what rows and details show of it beside.
type view struct {
	of        *exposition.Snapshot
	config    Config
	catalogue driver.Catalogue

	states  map[driver.ID]book.State
	stalled map[driver.ID]string // why the claims of these devices are stalled
}

func newView(s *exposition.Snapshot, c Config) view {
	v := view{
		of: s, config: c, catalogue: s.Catalogue.OrStandard(), states: map[driver.ID]book.State{},
		stalled: map[driver.ID]string{},
	}
	for i, state := range s.States(c.QuietAfter) {
		v.states[s.Devices[i].ID] = state
	}
	for key, verdict := range s.Stalled {
		if verdict.Stalled != nil { // only for devices that one claim holds alone
			v.stalled[key.Device] = stalledText(texts(verdict.Stalled), texts(verdict.Host))
		}
	}
	return v
}

// Tile is the number of devices in a state.
type Tile struct {
	Count   int        `json:"count"`
	State   book.State `json:"state"`
	Meaning string     `json:"meaning"`
	Class   string     `json:"class"`
}

// Tiles returns the states of devices. Those that need attention are first.
func Tiles(counts map[book.State]int) (out []Tile) {
	for _, state := range slices.SortedFunc(slices.Values(book.States()), book.CompareAttention) {
		if n := counts[state]; n > 0 {
			out = append(out, Tile{n, state, state.Meaning(), StateClass(state)})
		}
	}
	return out
}

// trouble is a source that is down.
type trouble struct {
	Source string        `json:"source"`
	Reason driver.Reason `json:"reason"`
	Do     string        `json:"do,omitempty"`
}

// DeviceRow is a device.
type DeviceRow struct {
	driver.ID

	Name    string       `json:"id"`
	Model   string       `json:"model"`
	State   book.State   `json:"state"`
	Class   string       `json:"class"`
	Why     string       `json:"why"`
	Quiet   Figure       `json:"quiet,omitzero"` // for how long it has been quiet
	Marks   []mark       `json:"marks,omitempty"`
	Sharing string       `json:"sharing,omitempty"` // "": at most one claim holds it
	Holders []holderLine `json:"holders,omitempty"`
	Admins  []holderLine `json:"admins,omitempty"` // holders with admin access

	figures
}

// mark is a word beside the state of a device, for taints that keep pods away or evict them.
type mark struct {
	Name  string `json:"name"`
	What  string `json:"what"`
	Class string `json:"class"`
}

// stalledText describes the state of a stalled claim, with the signals that show no progress.
func stalledText(device, host []string) string {
	return "busy, and does nothing, for all that is measured: " + nameOf(strings.Join(slices.Concat(device, host), ", "))
}

// holderLine is a share of a device, as the device's row shows it.
type holderLine struct {
	Pods  string `json:"pods"`
	Claim string `json:"claim,omitempty"` // NAMESPACE/NAME; "": a device plugin allocated it
	Label string `json:"label,omitempty"` // the part of the claim's name that the pods do not show
	Part  string `json:"part,omitempty"`
}

// HolderRow is a claim's or a pod's part of a device.
type HolderRow struct {
	driver.ID

	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	State     book.State `json:"state"`             // of the device
	Stalled   string     `json:"stalled,omitempty"` // why it makes no progress; "": it may make some
	Quiet     Figure     `json:"quiet,omitzero"`    // for how long it has been quiet; unknown: it is not
	Held      Figure     `json:"held,omitzero"`     // for how long
	Active    Figure     `json:"active,omitzero"`   // in which part of that time it was active
	figures
}

// NewPage returns what the page shows of a snapshot. Traffic and trends come from the recorder.
func NewPage(s *exposition.Snapshot, c Config) *Page {
	v := &Page{
		view: newView(s, c), Node: c.Node, Version: c.Version, Time: Clock(s.Time),
	}
	if c.Recorder == nil {
		v.Unrecorded = NoRecorder
	} else {
		v.recent = c.Recorder.Recent(recorder.DefaultKeep, trendValues)
	}
	for _, source := range c.Sources {
		if source.Down != "" {
			v.Troubles = append(v.Troubles, trouble{source.Name, source.Down, Remedy(source.Down)})
		}
	}
	counts, lastActive := map[book.State]int{}, s.LastActive()
	for i := range s.Devices {
		d := &s.Devices[i]
		state := v.states[d.ID]
		counts[state]++
		row := newDeviceRow(d, state)
		row.setRecent(v.recent[recorder.Owner{Kind: recorder.OfDevice, Device: d.ID}])
		if state == book.StateStalled {
			row.Why = v.stalled[d.ID]
		}
		if state == book.StateQuiet {
			row.Quiet = lasting(s.Time.Sub(lastActive[i]).Seconds())
		}
		v.Devices = append(v.Devices, row)
	}
	slices.SortFunc(v.Devices, func(a, b DeviceRow) int {
		return cmp.Or(
			book.CompareAttention(a.State, b.State), compareIDs(a.ID, b.ID),
		)
	})
	v.Tiles = Tiles(counts)
	v.Claims = v.holders(recorder.OfClaim, s.Claims)
	v.Pods = v.holders(recorder.OfPod, slices.Concat(s.Pods, s.Young))
	v.gatherAdmins()
	v.Wrong, v.Sums = v.findings(), v.sums(s)
	v.Incidents = v.incidentRows()
	return v
}

// maxHolderRows limits the rows of claims, and of pods, on the page. Those that need attention most
// are shown. The JSON has all.
const maxHolderRows = 1000

// holders returns the rows of holders that have not ended.
func (v *Page) holders(kind recorder.OwnerKind, holders []book.Holder) []HolderRow {
	rows := make([]HolderRow, 0, len(holders))
	for i := range holders {
		h := &holders[i]
		if h.IsAggregated() { // its pods have rows of their own
			continue
		}
		if !h.Ended.IsZero() {
			v.Ended++
			continue
		}
		row := newHolderRow(h, v.of.Time, v.config.QuietAfter)
		row.setRecent(v.recent[recorder.Owner{Kind: kind, Namespace: h.Namespace, Name: h.Name, Device: h.Device}])
		if row.State = v.states[h.Device]; row.State == book.StateStalled {
			row.Stalled = v.stalled[h.Device]
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, compareHolders)
	v.More += max(0, len(rows)-maxHolderRows)
	return slices.Clip(rows[:min(len(rows), maxHolderRows)])
}

// compareFlags orders true before false.
func compareFlags(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// compareHolders orders holders of unhealthy devices first, then stalled ones, then those that have
// been quiet for longest.
func compareHolders(a, b HolderRow) int {
	return cmp.Or(
		compareFlags(a.State == book.StateUnhealthy, b.State == book.StateUnhealthy),
		compareFlags(a.State == book.StateStalled, b.State == book.StateStalled),
		cmp.Compare(b.Quiet.Number, a.Quiet.Number), CompareNames(a.Namespace, b.Namespace), CompareNames(a.Name, b.Name),
		compareIDs(a.ID, b.ID),
	)
}

// StateClass returns the CSS class of a state on the pages: good, warn, bad or dim.
func StateClass(state book.State) string {
	switch state {
	case book.StateActive, book.StatePartitioned:
		return "good"
	case book.StateQuiet, book.StateIdle, book.StateUnmeasured, book.StateTainted:
		return "warn"
	case book.StateUnhealthy, book.StateStalled:
		return "bad"
	default:
		return "dim"
	}
}

func newDeviceRow(d *book.Device, state book.State) DeviceRow {
	row := DeviceRow{
		ID: d.ID, Name: d.ID.String(), Model: d.Entry.Model, State: state, Why: state.Meaning(), Class: StateClass(state),
		Marks: taintMarks(d.Entry.Taints), figures: figuresOf(d.Values),
	}
	if d.Missing != join.MissingNone {
		row.Why += "; no telemetry: " + string(d.Missing)
	}
	for i := range d.Shares {
		s := &d.Shares[i]
		line := holderLine{Pods: podList(s.Pods), Claim: claimName(s.Claim), Label: claimLabel(s)}
		switch {
		case s.Admin:
			row.Admins = append(row.Admins, line)
			continue
		case d.Attribution == join.AttributionExclusive:
		case d.Attribution == join.AttributionProcess:
			line.Part = "by process"
		default:
			line.Part = percentOf(s.Weight)
		}
		row.Holders = append(row.Holders, line)
	}
	if len(row.Holders) > 1 {
		row.Sharing = fmt.Sprintf("%d shares, %s", len(row.Holders), d.Attribution)
	}
	for _, lines := range [][]holderLine{row.Holders, row.Admins} {
		slices.SortFunc(lines, func(a, b holderLine) int {
			return cmp.Or(CompareNames(a.Pods, b.Pods), CompareNames(a.Claim, b.Claim))
		})
	}
	return row
}

// claimName returns NAMESPACE/NAME, as in the page's addresses; "" for an allocation by a device
// plugin.
func claimName(c podresources.Claim) string {
	if c.Name == "" {
		return ""
	}
	return c.Namespace + "/" + c.Name
}

// claimLabel returns the claim's name. It has the namespace if the share has no pod. If the name
// begins with that of the only pod, as names of claims from templates do, that part is left out.
func claimLabel(s *join.Share) string {
	if len(s.Pods) == 0 {
		return claimName(s.Claim)
	}
	if rest, ok := strings.CutPrefix(s.Claim.Name, s.Pods[0].Name+"-"); ok && len(s.Pods) == 1 {
		return "…-" + rest
	}
	return s.Claim.Name
}

// taintMarks returns a mark for each effect of the taints.
func taintMarks(taints []driver.Taint) []mark {
	var marks []mark
	for _, effect := range []struct{ name, class string }{{"NoExecute", "bad"}, {"NoSchedule", "warn"}} {
		var what []string
		for _, t := range taints {
			if t.Effect == effect.name {
				what = append(what, taintText(t.String(), t.Rule))
			}
		}
		if len(what) > 0 {
			marks = append(marks, mark{Name: effect.name, What: strings.Join(what, ", "), Class: effect.class})
		}
	}
	return marks
}

// taintText names a taint and its origin: a rule, or else a slice.
func taintText(taint, rule string) string {
	if rule != "" {
		return taint + " (DeviceTaintRule " + rule + ")"
	}
	return taint + " (ResourceSlice)"
}

// podList names the first pods of a share. A namespace is written where it changes.
func podList(pods []podresources.Pod) string {
	pods = slices.SortedFunc(slices.Values(pods), func(a, b podresources.Pod) int {
		return cmp.Or(CompareNames(a.Namespace, b.Namespace), CompareNames(a.Name, b.Name))
	})
	names, before := []string{}, ""
	for i, p := range pods {
		if i == 3 {
			names = append(names, fmt.Sprintf("and %d more", len(pods)-i))
			break
		}
		if p.Namespace == before {
			names = append(names, p.Name)
		} else {
			names = append(names, p.Namespace+"/"+p.Name)
		}
		before = p.Namespace
	}
	return strings.Join(names, ", ")
}

func newHolderRow(h *book.Holder, now time.Time, quietAfter time.Duration) HolderRow {
	row := HolderRow{
		ID: h.Device, Namespace: h.Namespace, Name: h.Name, Held: lasting(h.Allocated), figures: figuresOf(h.Values),
	}
	for i := range h.Values {
		if v := &h.Values[i]; v.Quantity == driver.ActiveSeconds && h.Allocated > 0 {
			part := min(1, v.Value/h.Allocated)
			row.Active = newFigure(percentOf(part), part)
		}
	}
	if quiet := now.Sub(h.LastActive); !h.LastActive.IsZero() && quiet >= quietAfter {
		row.Quiet = lasting(quiet.Seconds())
	}
	return row
}
