package present

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Detail is everything known about a device, claim, pod or incident.
type Detail struct {
	Node, Title, Time string
	Sections          []Section // none: no such device, claim, pod or incident
	Charts            []chartGroup
}

// tidy removes sections without rows, and columns without texts.
func (d *Detail) tidy() {
	d.Sections = slices.DeleteFunc(d.Sections, func(s Section) bool { return len(s.Rows) == 0 })
	for i := range d.Sections {
		s := &d.Sections[i]
		for column := len(s.Head) - 1; column > 0; column-- {
			if slices.ContainsFunc(s.Rows, func(row []Item) bool { return row[column].Text != "" }) {
				continue
			}
			s.Head = slices.Delete(s.Head, column, column+1)
			for j := range s.Rows {
				s.Rows[j] = slices.Delete(s.Rows[j], column, column+1)
			}
		}
	}
}

// Section is a table. A table without a head has names in its first column.
type Section struct {
	Title string
	Head  []string
	Rows  [][]Item
}

// Item is a cell of a table.
type Item struct {
	Text                         string
	Device, Claim, Pod, Incident string // the subject that the cell links to; all "": no link
	Class                        string
}

// absent is the title of the section of absent values.
const absent = "Absent"

// IsAbsent reports whether the section is that of absent values, which is last.
func (s *Section) IsAbsent() bool { return s.Title == absent }

func (s *Section) add(texts ...string) {
	var row []Item
	for _, text := range texts {
		row = append(row, Item{Text: text})
	}
	s.Rows = append(s.Rows, row)
}

// fact adds a row unless its text is empty.
func (s *Section) fact(name, text string) {
	if text != "" {
		s.add(name, text)
	}
}

// state adds a row with a state and its definition.
func (s *Section) state(name string, of ledger.State) {
	s.Rows = append(s.Rows, []Item{{Text: name}, {Text: string(of) + ": " + of.Meaning(), Class: StateClass(of)}})
}

// stalled adds a row with the reason why a claim is stalled, unless reason is empty.
func (s *Section) stalled(reason string) {
	if reason != "" {
		s.Rows = append(s.Rows, []Item{{Text: string(ledger.StateStalled)}, {Text: stalledText(reason), Class: "bad"}})
	}
}

// contradiction adds a row with the evidence that the device works although its utilization is 0.
func (s *Section) contradiction(d *ledger.Device) {
	if d.Contradiction != join.NoContradiction {
		text := "the utilization is 0, and " + d.Contradiction.Meaning() + ": it does not count as idle"
		s.Rows = append(s.Rows, []Item{{Text: "contradiction"}, {Text: text, Class: "warn"}})
	}
}

// Subject is the subject of details. One field is set.
type Subject struct{ Incident, Claim, Pod, Device string }

// Detail returns the details of a subject.
func (v *Page) Detail(ctx context.Context, of Subject) (d Detail, err error) {
	namespace, name, _ := strings.Cut(cmp.Or(of.Claim, of.Pod), "/")
	switch {
	case of.Incident != "":
		d, err = v.incident(ctx, of.Incident)
	case of.Claim != "":
		d = v.claim(of.Claim)
		d.Sections = append(d.Sections, v.receiptSections(of.Claim)...)
		d.lead(v.incidentsOf(hitting(func(h *recorder.Holder) bool { return h.Namespace == namespace && h.Claim == name })))
		d.Charts, err = v.recorded(ctx, recorder.Selection{Namespace: namespace, Claim: name})
	case of.Pod != "":
		d = v.pod(of.Pod)
		d.lead(v.incidentsOf(hitting(func(h *recorder.Holder) bool { return h.Namespace == namespace && h.Pod == name })))
		d.Charts, err = v.recorded(ctx, recorder.Selection{Namespace: namespace, Pod: name})
	default:
		d = v.device(of.Device)
		d.lead(v.incidentsOf(func(i *recorder.Incident) bool {
			return i.Device.String() == of.Device || i.Device.Device == of.Device
		}))
		d.Charts, err = v.recorded(ctx, recorder.Selection{Device: of.Device})
	}
	d.Node = cmp.Or(v.config.Node, "this node")
	return d, err
}

// device returns the details of a device, given as DRIVER/POOL/NAME, or of all devices with a name.
func (v *Page) device(name string) Detail {
	out := Detail{Title: "Device " + name, Time: clock(v.of.Time)}
	for i := range v.of.Devices {
		d := &v.of.Devices[i]
		if d.ID.String() != name && d.ID.Device != name {
			continue
		}
		out.Sections = append(out.Sections, v.facts(d), v.heldBy(d),
			v.values("Values", d.Values), v.values("Not charged to a claim", d.Unattributed), v.absent(d))
	}
	out.tidy()
	return out
}

func (v *Page) facts(d *ledger.Device) Section {
	state, h := v.states[d.ID], &d.Entry.Hardware
	s := Section{Title: d.ID.Device}
	s.state("state", state)
	s.stalled(v.stalled[d.ID])
	s.contradiction(d)
	s.fact("driver", d.ID.Driver)
	s.fact("pool", d.ID.Pool)
	s.fact("model", h.Model)
	s.fact("profile", h.Profile)
	s.fact("vendor", h.Vendor)
	s.fact("UUID", h.UUID)
	s.fact("PCI address", h.PCI)
	s.fact("serial number", h.Serial)
	s.fact("firmware", h.FirmwareVersion)
	s.fact("driver version", h.DriverVersion)
	s.fact("CUDA", h.CUDAVersion)
	s.fact("interface", h.NetDev)
	if d.Parent != "" {
		parent := driver.ID{Driver: d.ID.Driver, Pool: d.ID.Pool, Device: d.Parent}
		s.Rows = append(s.Rows, []Item{{Text: "partition of"}, {Text: d.Parent, Device: parent.String()}})
	}
	if d.Entry.Unlisted {
		s.fact("listed", "in no ResourceSlice: no claim can ask for it")
	}
	if d.Entry.ManyNodes {
		s.fact("offered to", "several nodes")
	}
	s.fact("not healthy", d.HealthReason)
	for _, t := range d.Entry.Taints {
		s.fact("taint", taintText(t))
	}
	if d.Allocated > 0 {
		s.fact("held for", duration(d.Allocated)+" since "+clock(d.Born))
	}
	if !d.LastError.IsZero() {
		s.fact("last error", clock(d.LastError))
	}
	return s
}

func (v *Page) heldBy(d *ledger.Device) Section {
	s := Section{Title: "Held by", Head: []string{"Claim", "Pods", "Why", "Part", "Request", "Consumes"}}
	for i := range d.Shares {
		share := &d.Shares[i]
		part := fmt.Sprintf("%.0f %%, %s", 100*share.Weight, d.Attribution)
		if share.Admin {
			part = "admin access: none"
		}
		var pods, consumed []string
		for _, p := range share.Pods {
			pods = append(pods, p.Namespace+"/"+p.Name)
		}
		slices.SortFunc(pods, CompareNames)
		for _, c := range share.Consumed {
			consumed = append(consumed, c.Resource+" "+strings.TrimSpace(scaled(c.Value, "", 1024)))
		}
		name := claimName(share.Claim)
		s.Rows = append(s.Rows, []Item{
			{Text: cmp.Or(name, "device plugin"), Claim: name},
			podsItem(pods),
			{Text: v.why(share)},
			{Text: part},
			{Text: strings.TrimSpace(share.Request + " " + share.ShareID)},
			{Text: strings.Join(consumed, ", ")},
		})
	}
	slices.SortFunc(s.Rows, func(a, b []Item) int { return CompareNames(a[0].Text, b[0].Text) })
	return s
}

// why returns why the pods of a share hold it: for each pod, or once if all have the same reason.
func (v *Page) why(share *join.Share) string {
	pods := map[string][]string{} // names of pods by reason
	for h := range holds(share) {
		text := string(h.Hold.Reason)
		if !h.Hold.Since.IsZero() {
			text += " since " + clock(h.Hold.Since)
		}
		pods[text] = append(pods[text], h.Namespace+"/"+h.Name)
	}
	reasons := slices.Sorted(maps.Keys(pods))
	if len(reasons) > 1 {
		for i, text := range reasons {
			reasons[i] = strings.Join(pods[text], ", ") + ": " + text
		}
	}
	return strings.Join(reasons, "; ")
}

// podsItem names pods, and links to a single pod.
func podsItem(pods []string) Item {
	out := Item{Text: strings.Join(pods, ", ")}
	if len(pods) == 1 {
		out.Pod = pods[0]
	}
	return out
}

// values returns a row for each value. For counters, it has the time since which they count.
func (v *Page) values(title string, values []ledger.Value) Section {
	s := Section{Title: title, Head: []string{"Quantity", "Value", "Source"}}
	for i := range values {
		value := &values[i]
		spec := v.catalogue.Spec(value.Quantity)
		name := strings.ReplaceAll(spec.Name, "_", " ")
		if labels := strings.TrimSpace(strings.Join(value.Labels[:], " ")); labels != "" {
			name += " (" + labels + ")"
		}
		text := inUnit(value.Value, spec)
		if spec.Type == driver.Counter {
			text += " since " + clock(value.Born)
		}
		if value.Quantity == driver.Errors {
			text = strings.TrimSuffix(text+": "+recorder.MeaningOf(value.Labels), ": ")
		}
		s.add(name, text, value.Source)
	}
	return s
}

// absent returns a row for each reason why values of a device are absent.
func (v *Page) absent(d *ledger.Device) Section {
	s := Section{Title: absent, Head: []string{"What", "Why", "What to do"}}
	if d.Missing != join.MissingNone {
		why, do := Missing(d.ID.Driver, d.Missing)
		s.add("all telemetry", fmt.Sprintf("%s (%s)", why, d.Missing), do)
		for _, source := range v.config.Sources {
			if source.Down != "" {
				s.add("source "+source.Name, "it is down: "+string(source.Down), Remedy(source.Down))
			}
		}
		return s
	}
	present, readers := map[driver.Quantity]bool{}, map[string]bool{}
	for i := range d.Values {
		name, _, _ := strings.Cut(d.Values[i].Source, " ")
		present[d.Values[i].Quantity], readers[name] = true, true
	}
	type reason struct{ why, do string }
	absent := map[reason][]string{}
	for _, divided := range d.Divided {
		present[divided.Quantity] = true
		parent := reason{why: divided.Source + ": its parent measures it, and its claims have their parts of that"}
		absent[parent] = append(absent[parent], strings.ReplaceAll(v.catalogue.Spec(divided.Quantity).Name, "_", " "))
	}
	for q := range v.catalogue {
		if spec := &v.catalogue[q]; !spec.Internal && !present[driver.Quantity(q)] {
			why, do := whyAbsent(driver.Quantity(q), d.Absent, v.config.Sources, readers)
			absent[reason{why, do}] = append(absent[reason{why, do}], strings.ReplaceAll(spec.Name, "_", " "))
		}
	}
	order := func(a, b reason) int { return cmp.Or(cmp.Compare(b.do, a.do), cmp.Compare(a.why, b.why)) }
	for _, r := range slices.SortedFunc(maps.Keys(absent), order) {
		s.add(strings.Join(absent[r], ", "), r.why, r.do)
	}
	return s
}

// whyAbsent returns why a device with other telemetry lacks a quantity, and what to do about it.
// known are the reasons that its sources know, readers the names of the sources of that telemetry.
func whyAbsent(q driver.Quantity, known []driver.Absence, sources []Source, readers map[string]bool) (why, do string) {
	for _, a := range known {
		if a.Quantity == q {
			return Absent(a.Why)
		}
	}
	var here, elsewhere []string
	for _, s := range sources {
		switch {
		case !slices.Contains(s.Fills, q):
		case s.Down != "":
			return fmt.Sprintf("%s is down: %s", s.Name, s.Down), Remedy(s.Down)
		case readers[s.Name]:
			here = append(here, s.Name)
		default:
			elsewhere = append(elsewhere, s.Name)
		}
	}
	switch {
	case len(here) > 0:
		return strings.Join(here, ", ") + ": this device does not report it", ""
	case len(elsewhere) > 0:
		return strings.Join(elsewhere, ", ") + ": reads it, and this device is none of its hardware", ""
	default:
		return "no source that runs reads it", "enable one, or name the vendor's exporter in --source.scrape.config"
	}
}

// claim returns the details of NAMESPACE/NAME: a section for each device that the claim holds, or
// held within the retention, with the device's absent values.
func (v *Page) claim(name string) Detail {
	out := Detail{Title: "Claim " + name, Time: clock(v.of.Time)}
	for i := range v.of.Claims {
		h := &v.of.Claims[i]
		if h.Namespace+"/"+h.Name != name {
			continue
		}
		facts := v.holding(h)
		facts.fact("UID", h.UID)
		if h.Advice != nil {
			facts.fact("smallest fit", h.Advice.Text())
		}
		out.Sections = append(out.Sections, facts)
		at := slices.IndexFunc(v.of.Devices, func(d ledger.Device) bool { return d.ID == h.Device })
		values := v.values("Values of the claim", h.Values)
		if at < 0 {
			out.Sections = append(out.Sections, values)
			continue
		}
		out.Sections = append(out.Sections, v.sharesOf(&v.of.Devices[at], name), values, v.absent(&v.of.Devices[at]))
	}
	out.tidy()
	return out
}

// holding describes how a claim or pod holds a device.
func (v *Page) holding(h *ledger.Holder) Section {
	s := Section{Title: h.Device.Device}
	s.Rows = append(s.Rows, []Item{{Text: "device"}, {Text: h.Device.String(), Device: h.Device.String()}})
	if state := v.states[h.Device]; state != "" {
		s.state("state of the device", state)
	}
	if h.Ended.IsZero() {
		s.stalled(v.stalled[h.Device])
		if of, judged := v.of.Stalled[h.HolderKey]; judged && of.Unknown != stall.Shared {
			s.fact("progress", of.Evidence())
		}
	}
	s.fact("held since", clock(h.Born)+", for "+duration(h.Allocated))
	if !h.Ended.IsZero() {
		s.fact("ended", clock(h.Ended))
	}
	s.fact("last active", cmp.Or(ago(v.of.Time, h.LastActive), "not measured"))
	return s
}

// pod returns the details of NAMESPACE/NAME: the pod itself, and a section for each device that it
// holds, or held within the retention.
func (v *Page) pod(name string) Detail {
	out := Detail{Title: "Pod " + name, Time: clock(v.of.Time)}
	at := slices.IndexFunc(v.of.PodInfos, func(p ledger.PodInfo) bool { return p.Namespace+"/"+p.Name == name })
	if at < 0 {
		return out
	}
	of := Section{Title: "Pod"}
	of.fact("UID", v.of.PodInfos[at].UID)
	if meta := v.of.PodInfos[at].Meta; meta != nil {
		of.fact("controller", strings.TrimSpace(meta.OwnerKind+" "+meta.OwnerName))
		of.fact("part of", strings.TrimSpace(meta.WorkloadKind+" "+meta.WorkloadName))
		of.fact("queue", meta.Queue)
	}
	out.Sections = append(out.Sections, of)
	for i := range v.of.Pods {
		h := &v.of.Pods[i]
		if h.Namespace+"/"+h.Name != name {
			continue
		}
		facts := v.holding(h)
		for j := range v.of.Devices {
			if v.of.Devices[j].ID == h.Device {
				facts.claims(&v.of.Devices[j], name)
			}
		}
		out.Sections = append(out.Sections, facts, v.values("Values of the pod", h.Values))
	}
	out.tidy()
	return out
}

// claims adds a row for each claim through which a pod holds the device.
func (s *Section) claims(d *ledger.Device, pod string) {
	for i := range d.Shares {
		claim := claimName(d.Shares[i].Claim)
		if claim != "" && slices.ContainsFunc(d.Shares[i].Pods, func(p podresources.Pod) bool {
			return p.Namespace+"/"+p.Name == pod
		}) {
			s.Rows = append(s.Rows, []Item{{Text: "through the claim"}, {Text: claim, Claim: claim}})
		}
	}
}

// sharesOf returns a claim's shares of a device.
func (v *Page) sharesOf(d *ledger.Device, claim string) Section {
	s := v.heldBy(d)
	s.Rows = slices.DeleteFunc(s.Rows, func(row []Item) bool { return row[0].Claim != claim })
	return s
}

// ago returns the time since at, as text; "" for the zero time.
func ago(now, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return duration(max(0, now.Sub(at).Seconds())) + " ago"
}

func clock(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 MST") }
