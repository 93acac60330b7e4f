package present

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Detail is everything known about a device, claim, pod or incident. Its JSON is read by the
// gateway, top and why of the same version, and is not an API.
type Detail struct {
	Node, Title, Time string
	Sections          []Section // none: no such device, claim, pod or incident
	Overview          *overview // of a device; nil: nothing is recorded
	Charts            []chartGroup
	Own               bool // it has nothing that belongs to others, as [Subject.Own] asks
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
	Text string `json:",omitempty"`
	// The subject that the cell links to; all "": no link.
	Device, Claim, Pod, Incident string `json:",omitempty"`
	Class                        string `json:",omitempty"`
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

// Lines returns the table as lines of text, indented and with aligned columns.
func (s *Section) Lines() []string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	line := func(texts ...string) {
		_, _ = fmt.Fprintf(w, "  %s\n", strings.Join(texts, "\t")) // a builder's Write does not fail
	}
	if s.Head != nil {
		line(s.Head...)
	}
	for _, row := range s.Rows {
		texts := make([]string, 0, len(row))
		for _, cell := range row {
			if cell.Incident != "" {
				cell.Text += " (" + cell.Incident + ")" // in place of a link
			}
			texts = append(texts, cell.Text)
		}
		line(texts...)
	}
	_ = w.Flush()
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

// fact adds a row unless its text is empty.
func (s *Section) fact(name, text string) {
	if text != "" {
		s.add(name, text)
	}
}

// state adds a row with a state and its definition.
func (s *Section) state(name string, of book.State) {
	s.Rows = append(s.Rows, []Item{{Text: name}, {Text: string(of) + ": " + of.Meaning(), Class: StateClass(of)}})
}

// stalled adds a row with the reason why a claim is stalled, if there is one.
func (s *Section) stalled(why string) {
	if why != "" {
		s.Rows = append(s.Rows, []Item{{Text: string(book.StateStalled)}, {Text: why, Class: "bad"}})
	}
}

// contradiction adds a row with the evidence that the device works although its utilization is 0.
func (s *Section) contradiction(d *book.Device) {
	if d.Contradiction != join.NoContradiction {
		text := Contradiction(d.Contradiction) + ": it does not count as idle"
		s.Rows = append(s.Rows, []Item{{Text: "contradiction"}, {Text: text, Class: "warn"}})
	}
}

// Subject is the subject of details. One of the names is set.
type Subject struct {
	Incident, Claim, Pod, Device string

	Own bool // without what belongs to others than the claim or the pod
}

// Hit reports whether an incident hit the subject, or may have.
func (s Subject) Hit(i *recorder.Incident) bool {
	namespace, name, _ := strings.Cut(cmp.Or(s.Claim, s.Pod), "/")
	switch {
	case s.Device != "":
		return i.Device.String() == s.Device || i.Device.Device == s.Device
	case s.Claim != "":
		return slices.ContainsFunc(i.Holders, func(h recorder.Holder) bool {
			return h.Hit && h.Namespace == namespace && h.Claim == name
		})
	default:
		return slices.ContainsFunc(i.Holders, func(h recorder.Holder) bool {
			return h.Hit && h.Namespace == namespace && h.Pod == name
		})
	}
}

// NewDetail returns the details of a subject, beginning with the incidents that hit it.
func NewDetail(s *exposition.Snapshot, c Config, of Subject) Detail {
	v := newView(s, c)
	d := Detail{Node: cmp.Or(v.config.Node, "this node"), Time: Clock(v.of.Time)}
	var incidents []*recorder.Incident
	if v.config.Recorder != nil {
		incidents = v.config.Recorder.Incidents()
	}
	switch {
	case of.Incident != "":
		d.Title = "Incident " + of.Incident
		if v.config.Recorder != nil {
			if i := v.config.Recorder.Incident(of.Incident); i != nil {
				d.incident(i, v.of.Time, v.catalogue)
			}
		}
		d.tidy()
		return d
	case of.Claim != "":
		d.Title, d.Sections, d.Own = "Claim "+of.Claim, v.claim(of), of.Own
	case of.Pod != "":
		d.Title, d.Sections, d.Own = "Pod "+of.Pod, v.pod(of.Pod), of.Own
	default:
		d.Title = "Device " + of.Device
		for i := range v.of.Devices {
			if isNamed(v.of.Devices[i].ID, of.Device) {
				d.Sections = append(d.Sections, v.device(&v.of.Devices[i])...)
			}
		}
	}
	if len(d.Sections) > 0 {
		d.Sections = slices.Insert(d.Sections, 0, incidentsOf(incidents, of))
	}
	if of.Claim != "" && !of.Own {
		d.Sections = append(d.Sections, v.receiptSections(of.Claim)...)
	}
	if !d.Own && v.config.Recorder != nil {
		v.recorded(&d, of, incidents)
	}
	d.tidy()
	return d
}

// isNamed reports whether a device has a name: DRIVER/POOL/DEVICE, or DEVICE.
func isNamed(id driver.ID, name string) bool { return id.String() == name || id.Device == name }

// Lines returns the details as lines of text. Titles are not indented.
func (d *Detail) Lines() []string {
	out := []string{d.Title + " on " + d.Node + ", as of " + d.Time}
	sections := slices.Clone(d.Sections)
	for _, of := range d.Charts {
		s := Section{Title: "Recorded of " + of.Title}
		for i := range of.Charts {
			c := &of.Charts[i]
			s.add(c.Name, c.Last, "("+c.Least+" to "+c.Most+")", c.Bars)
		}
		sections = append(sections, s)
	}
	for i := range sections {
		out = append(append(out, "", sections[i].Title), sections[i].Lines()...)
	}
	return out
}

// device describes a device.
func (v *view) device(d *book.Device) []Section {
	return []Section{
		v.facts(d), heldBy(d, ""), v.values("Values", d.Values), v.values("Not charged to a claim", d.Unattributed),
		v.absent(d),
	}
}

func (v *view) facts(d *book.Device) Section {
	s, h := Section{Title: d.ID.Device}, &d.Entry.Hardware
	s.state("state", v.states[d.ID])
	s.stalled(v.stalled[d.ID])
	s.contradiction(d)
	for _, of := range [...]struct{ name, text string }{
		{"driver", d.ID.Driver},
		{"pool", d.ID.Pool},
		{"model", h.Model},
		{"profile", h.Profile},
		{"vendor", h.Vendor},
		{"UUID", h.UUID},
		{"PCI address", h.PCI},
		{"serial number", h.Serial},
		{"firmware", h.FirmwareVersion},
		{"driver version", h.DriverVersion},
		{"CUDA", h.CUDAVersion},
		{"interface", h.NetDev},
	} {
		s.fact(of.name, of.text)
	}
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
		s.fact("taint", taintText(t.String(), t.Rule))
	}
	if d.Allocated > 0 {
		s.fact("held for", Duration(d.Allocated)+" since "+Clock(d.Born))
	}
	if !d.LastError.IsZero() {
		s.fact("last error", Clock(d.LastError))
	}
	return s
}

// heldBy describes the shares of a device, or those of a claim.
func heldBy(d *book.Device, claim string) Section {
	s := Section{Title: "Held by", Head: []string{"Claim", "Pods", "Why", "Part", "Request", "Consumes"}}
	for i := range d.Shares {
		share := &d.Shares[i]
		name := claimName(share.Claim)
		if claim != "" && claim != name {
			continue
		}
		part := percentOf(share.Weight) + ", " + string(d.Attribution)
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
		slices.Sort(consumed)
		s.Rows = append(s.Rows, []Item{
			{Text: cmp.Or(name, "device plugin"), Claim: name},
			podsItem(pods),
			{Text: whyHeld(share)},
			{Text: part},
			{Text: strings.TrimSpace(share.Request + " " + share.ShareID)},
			{Text: strings.Join(consumed, ", ")},
		})
	}
	slices.SortFunc(s.Rows, func(a, b []Item) int { return CompareNames(a[0].Text, b[0].Text) })
	return s
}

// whyHeld returns why the pods of a share hold it: for each pod, or once if all have the same
// reason.
func whyHeld(share *join.Share) string {
	pods := map[string][]string{} // names of pods by reason
	for h := range holds(share) {
		text := string(h.Hold.Reason)
		if !h.Hold.Since.IsZero() {
			text += " since " + Clock(h.Hold.Since)
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
func (v *view) values(title string, values []book.Value) Section {
	s := Section{Title: title, Head: []string{"Quantity", "Value", "Source"}}
	for i := range values {
		of := &values[i]
		spec := v.catalogue.Spec(of.Quantity)
		text := inUnit(of.Value, spec)
		if !of.Born.IsZero() && spec.Type == driver.Counter {
			text += " since " + Clock(of.Born)
		}
		if of.Quantity == driver.Errors {
			text = strings.TrimSuffix(text+": "+recorder.MeaningOf(of.Labels), ": ")
		}
		s.add(seriesName(spec, recorder.LabelsOf(spec, of.Labels)), text, of.Origin.String())
	}
	return s
}

// absent returns a row for each reason why values of a device are absent.
func (v *view) absent(d *book.Device) Section {
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
	found, readers := map[driver.Quantity]bool{}, map[string]bool{}
	for i := range d.Values {
		found[d.Values[i].Quantity], readers[d.Values[i].Origin.Source] = true, true
	}
	type reason struct{ why, do string }
	lacks := map[reason][]string{}
	for _, of := range d.Divided {
		found[of.Quantity] = true
		parent := reason{why: of.Origin.String() + ": its parent measures it, and its claims have their parts of that"}
		lacks[parent] = append(lacks[parent], nameOf(v.catalogue.Spec(of.Quantity).Name))
	}
	for n := range v.catalogue {
		if q := driver.Quantity(n); !v.catalogue[n].Internal && !found[q] {
			why, do := whyAbsent(q, d.Absent, v.config.Sources, readers)
			lacks[reason{why, do}] = append(lacks[reason{why, do}], nameOf(v.catalogue[n].Name))
		}
	}
	order := func(a, b reason) int { return cmp.Or(cmp.Compare(b.do, a.do), cmp.Compare(a.why, b.why)) }
	for _, r := range slices.SortedFunc(maps.Keys(lacks), order) {
		s.add(strings.Join(lacks[r], ", "), r.why, r.do)
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

// claim describes NAMESPACE/NAME: each device that the claim holds, or held within the retention.
func (v *view) claim(of Subject) []Section {
	var out []Section
	for i := range v.of.Claims {
		h := &v.of.Claims[i]
		if h.Namespace+"/"+h.Name != of.Claim {
			continue
		}
		facts := v.holding(h)
		facts.fact("UID", h.UID)
		if h.Advice != nil {
			facts.fact("smallest fit", FitText(h.Advice))
		}
		out = append(out, facts)
		d := v.deviceOf(h.Device)
		if d != nil {
			out = append(out, heldBy(d, of.Claim))
		}
		out = append(out, v.values("Values of the claim", h.Values))
		if d != nil && !of.Own {
			out = append(out, v.absent(d))
		}
	}
	return out
}

// deviceOf returns a device, nil if it is gone.
func (v *view) deviceOf(id driver.ID) *book.Device {
	at := v.of.IndexOf(id)
	if at < 0 {
		return nil
	}
	return &v.of.Devices[at]
}

// holding describes how a claim or pod holds a device.
func (v *view) holding(h *book.Holder) Section {
	s := Section{Title: h.Device.Device}
	s.Rows = append(s.Rows, []Item{{Text: "device"}, {Text: h.Device.String(), Device: h.Device.String()}})
	if state, known := v.states[h.Device]; known {
		s.state("state of the device", state)
	}
	if h.Ended.IsZero() {
		s.stalled(v.stalled[h.Device])
		if verdict, judged := v.of.Stalled[h.HolderKey]; judged && verdict.Unknown != stall.Shared {
			s.fact("progress", progressOf(&verdict))
		}
	}
	s.fact("held since", Clock(h.Born)+", for "+Duration(h.Allocated))
	if !h.Ended.IsZero() {
		s.fact("ended", Clock(h.Ended))
	}
	last := "not measured"
	if !h.LastActive.IsZero() {
		last = Ago(v.of.Time, h.LastActive)
	}
	s.fact("last active", last)
	return s
}

// pod describes NAMESPACE/NAME: the pod itself, and each device that it holds, or held within the
// retention.
func (v *view) pod(name string) []Section {
	of := Section{Title: "Pod"}
	var holds []Section
	rows := slices.Concat(v.of.Pods, v.of.Young)
	for i := range rows {
		h := &rows[i]
		if h.Namespace+"/"+h.Name != name {
			continue
		}
		if len(of.Rows) == 0 {
			of.fact("UID", h.UID)
		}
		facts := v.holding(h)
		if d := v.deviceOf(h.Device); d != nil {
			facts.claims(d, h)
		}
		holds = append(holds, facts, v.values("Values of the pod", h.Values))
	}
	at := slices.IndexFunc(v.of.PodInfos, func(p book.PodInfo) bool { return p.Namespace+"/"+p.Name == name })
	if at >= 0 {
		info := &v.of.PodInfos[at]
		of.Rows = nil
		of.fact("UID", info.UID)
		if meta := info.Meta; meta != nil {
			of.fact("controller", strings.TrimSpace(meta.OwnerKind+" "+meta.OwnerName))
			of.fact("part of", strings.TrimSpace(meta.WorkloadKind+" "+meta.WorkloadName))
			of.fact("queue", meta.Queue)
		}
	}
	if len(of.Rows) == 0 && holds == nil {
		return nil
	}
	return slices.Insert(holds, 0, of)
}

// claims adds a row for each claim through which a pod holds the device.
func (s *Section) claims(d *book.Device, pod *book.Holder) {
	for i := range d.Shares {
		share := &d.Shares[i]
		claim, of := claimName(share.Claim), podresources.Pod{Namespace: pod.Namespace, Name: pod.Name}
		if claim != "" && slices.Contains(share.Pods, of) {
			s.Rows = append(s.Rows, []Item{{Text: "through the claim"}, {Text: claim, Claim: claim}})
		}
	}
}
