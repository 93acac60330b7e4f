package present

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dra-exporter/dra-exporter/driver"
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

// stalled adds a row with the reason if a claim is stalled.
func (s *Section) stalled(verdict *StallReport) {
	if verdict != nil && verdict.Stalled != nil && *verdict.Stalled {
		why := stalledText(verdict.Silent, verdict.Host)
		s.Rows = append(s.Rows, []Item{{Text: string(book.StateStalled)}, {Text: why, Class: "bad"}})
	}
}

// contradiction adds a row with the evidence that the device works although its utilization is 0.
func (s *Section) contradiction(d *book.Device) {
	if d.Contradiction != join.NoContradiction {
		text := "the utilization is 0, and " + d.Contradiction.Meaning() + ": it does not count as idle"
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

// Detail returns the details of a subject.
func (v *Page) Detail(of Subject) Detail {
	n := v.known(of)
	if of.Incident != "" && v.config.Recorder != nil {
		n.incidents = []*recorder.Incident{v.config.Recorder.Incident(of.Incident)}
	}
	if of.Own {
		n.redact(of)
	}
	d := n.describe(of)
	if of.Claim != "" && !of.Own {
		d.Sections = append(d.Sections, v.receiptSections(of.Claim)...)
	}
	d.tidy()
	if of.Incident == "" && !of.Own {
		v.recorded(&d, of, n.incidents)
	}
	return d
}

// known returns what the own node knows of a subject.
func (v *Page) known(of Subject) *known {
	reports := newReporter(v.of, v.config)
	n := &known{
		Report: Report{Time: v.of.Time, Node: cmp.Or(v.config.Node, "this node")}, catalogue: v.catalogue,
		sources: v.config.Sources,
	}
	if v.config.Recorder != nil {
		n.incidents = v.config.Recorder.Incidents()
	}
	pods, on := slices.Concat(v.of.Pods, v.of.Young), map[driver.ID]bool{}
	for i := range v.of.Claims {
		h := &v.of.Claims[i]
		on[h.Device] = on[h.Device] || h.Namespace+"/"+h.Name == of.Claim
	}
	for i := range pods {
		if h := &pods[i]; h.Namespace+"/"+h.Name == of.Pod {
			on[h.Device] = true
			n.Pods = append(n.Pods, reports.holder(h))
		}
	}
	for i := range v.of.Claims {
		if h := &v.of.Claims[i]; on[h.Device] || isNamed(h.Device, of.Device) {
			n.Claims = append(n.Claims, reports.present(recorder.OfClaim, h))
		}
	}
	for i := range v.of.Devices {
		if d := &v.of.Devices[i]; on[d.ID] || isNamed(d.ID, of.Device) {
			n.Devices = append(n.Devices, reports.device(d, v.states[d.ID]))
		}
	}
	at := slices.IndexFunc(v.of.PodInfos, func(p book.PodInfo) bool { return p.Namespace+"/"+p.Name == of.Pod })
	if at >= 0 {
		n.info = &v.of.PodInfos[at]
	}
	return n
}

// isNamed reports whether a device has a name: DRIVER/POOL/DEVICE, or DEVICE.
func isNamed(id driver.ID, name string) bool { return id.String() == name || id.Device == name }

// known is what is known of a subject.
type known struct {
	Report

	incidents []*recorder.Incident
	catalogue driver.Catalogue
	sources   []Source
	info      *book.PodInfo // of the subject; nil: unknown
}

// redact removes what belongs to others than a claim or a pod: texts and other holders of
// incidents, claims of other namespaces, and all of its devices but their states and its shares.
func (n *known) redact(of Subject) {
	namespace, name, _ := strings.Cut(cmp.Or(of.Claim, of.Pod), "/")
	for i := range n.Devices {
		d := &n.Devices[i]
		d.Shares = slices.DeleteFunc(d.Shares, func(s ShareReport) bool {
			return s.Namespace != namespace || s.Claim != name && of.Claim != "" ||
				of.Pod != "" && !slices.Contains(s.Pods, of.Pod)
		})
		*d = DeviceReport{ID: d.ID, State: d.State, Attribution: d.Attribution, Shares: d.Shares}
	}
	n.Claims = slices.DeleteFunc(n.Claims, func(h HolderReport) bool { return h.Namespace != namespace })
	var incidents []*recorder.Incident
	for _, i := range n.incidents {
		if of.Hit(i) {
			incidents = append(incidents, &recorder.Incident{
				Onset: i.Onset, Last: i.Last, Count: i.Count, End: i.End, Text: kindText(i) + " on " + i.Device.String(),
				Holders: slices.DeleteFunc(slices.Clone(i.Holders), func(h recorder.Holder) bool {
					return h.Namespace != namespace || h.Claim != name && h.Pod != name
				}),
			})
		}
	}
	n.incidents = incidents
}

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

// describe returns the details of a subject, beginning with the incidents that hit it.
func (n *known) describe(of Subject) Detail {
	d := Detail{Node: n.Node, Time: Clock(n.Time), Own: of.Own}
	switch {
	case of.Incident != "":
		d.Title = "Incident " + of.Incident
		for _, i := range n.incidents {
			if i != nil && i.ID == of.Incident {
				d.incident(i, n.Time, n.catalogue)
			}
		}
		return d
	case of.Claim != "":
		d.Title, d.Sections = "Claim "+of.Claim, n.claim(of.Claim)
	case of.Pod != "":
		d.Title, d.Sections = "Pod "+of.Pod, n.pod(of.Pod)
	default:
		d.Title = "Device " + of.Device
		for i := range n.Devices {
			if isNamed(n.Devices[i].ID, of.Device) {
				d.Sections = append(d.Sections, n.device(&n.Devices[i])...)
			}
		}
	}
	if len(d.Sections) > 0 {
		d.Sections = slices.Insert(d.Sections, 0, n.incidentsOf(of))
	}
	return d
}

// device describes a device.
func (n *known) device(d *DeviceReport) []Section {
	return []Section{
		n.facts(d), n.heldBy(d, ""), n.values("Values", d.Values),
		n.values("Not charged to a claim", d.Unattributed), n.absent(d),
	}
}

func (n *known) facts(d *DeviceReport) Section {
	s := Section{Title: d.Device}
	s.state("state", d.State)
	for i := range n.Claims {
		if h := &n.Claims[i]; h.ID == d.ID && h.Ended == nil {
			s.stalled(h.Stall)
		}
	}
	s.contradiction(d.Of)
	for _, of := range [...]struct{ name, text string }{
		{"driver", d.Driver},
		{"pool", d.Pool},
		{"model", d.Model},
		{"profile", d.Profile},
		{"vendor", d.Vendor},
		{"UUID", d.UUID},
		{"PCI address", d.PCI},
		{"serial number", d.Serial},
		{"firmware", d.FirmwareVersion},
		{"driver version", d.DriverVersion},
		{"CUDA", d.CUDAVersion},
		{"interface", d.NetDev},
	} {
		s.fact(of.name, of.text)
	}
	if d.Parent != "" {
		parent := driver.ID{Driver: d.Driver, Pool: d.Pool, Device: d.Parent}
		s.Rows = append(s.Rows, []Item{{Text: "partition of"}, {Text: d.Parent, Device: parent.String()}})
	}
	if d.Unlisted {
		s.fact("listed", "in no ResourceSlice: no claim can ask for it")
	}
	if d.Of.Entry.ManyNodes {
		s.fact("offered to", "several nodes")
	}
	s.fact("not healthy", d.HealthReason)
	for _, t := range d.Taints {
		s.fact("taint", taintText(t.Taint, t.Rule))
	}
	if d.AllocatedSeconds > 0 {
		s.fact("held for", Duration(d.AllocatedSeconds)+" since "+Clock(d.Of.Born))
	}
	if d.LastError != nil {
		s.fact("last error", Clock(*d.LastError))
	}
	return s
}

// heldBy describes the shares of a device, or those of a claim.
func (n *known) heldBy(d *DeviceReport, claim string) Section {
	s := Section{Title: "Held by", Head: []string{"Claim", "Pods", "Why", "Part", "Request", "Consumes"}}
	for i := range d.Shares {
		share := &d.Shares[i]
		name := share.claimName()
		if claim != "" && claim != name {
			continue
		}
		part := percentOf(share.Weight) + ", " + string(d.Attribution)
		if share.Admin {
			part = "admin access: none"
		}
		var consumed []string
		for _, resource := range slices.Sorted(maps.Keys(share.Consumed)) {
			consumed = append(consumed, resource+" "+strings.TrimSpace(scaled(share.Consumed[resource], "", 1024)))
		}
		s.Rows = append(s.Rows, []Item{
			{Text: cmp.Or(name, "device plugin"), Claim: name},
			podsItem(slices.SortedFunc(slices.Values(share.Pods), CompareNames)),
			{Text: whyHeld(share.Holds)},
			{Text: part},
			{Text: strings.TrimSpace(share.Request + " " + share.ShareID)},
			{Text: strings.Join(consumed, ", ")},
		})
	}
	slices.SortFunc(s.Rows, func(a, b []Item) int { return CompareNames(a[0].Text, b[0].Text) })
	return s
}

// claimName returns NAMESPACE/NAME; "" for an allocation by a device plugin.
func (s *ShareReport) claimName() string {
	return claimName(podresources.Claim{Namespace: s.Namespace, Name: s.Claim})
}

// whyHeld returns why the pods of a share hold it: for each pod, or once if all have the same
// reason.
func whyHeld(holds []HoldReport) string {
	pods := map[string][]string{} // names of pods by reason
	for _, h := range holds {
		text := string(h.Reason)
		if h.ReasonSince != nil {
			text += " since " + Clock(*h.ReasonSince)
		}
		pods[text] = append(pods[text], h.Pod)
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
func (n *known) values(title string, values []ValueReport) Section {
	s := Section{Title: title, Head: []string{"Quantity", "Value", "Source"}}
	for i := range values {
		v := &values[i]
		name, text := v.Texts(n.catalogue)
		if !v.Since.IsZero() && specOf(n.catalogue, v.Quantity).Type == driver.Counter {
			text += " since " + Clock(v.Since)
		}
		if v.Quantity == driver.Errors.String() {
			var labels driver.Labels
			for j, label := range specOf(n.catalogue, v.Quantity).Labels {
				labels[j] = v.Labels[label.Name]
			}
			text = strings.TrimSuffix(text+": "+recorder.MeaningOf(labels), ": ")
		}
		s.add(name, text, v.Source)
	}
	return s
}

// absent returns a row for each reason why values of a device are absent.
func (n *known) absent(d *DeviceReport) Section {
	s := Section{Title: absent, Head: []string{"What", "Why", "What to do"}}
	if d.Of == nil { // it is redacted
		return s
	}
	if d.Missing != join.MissingNone {
		why, do := Missing(d.Driver, d.Missing)
		s.add("all telemetry", fmt.Sprintf("%s (%s)", why, d.Missing), do)
		for _, source := range n.sources {
			if source.Down != "" {
				s.add("source "+source.Name, "it is down: "+string(source.Down), Remedy(source.Down))
			}
		}
		return s
	}
	found, readers := map[string]bool{}, map[string]bool{}
	for i := range d.Values {
		found[d.Values[i].Quantity], readers[join.ParseOrigin(d.Values[i].Source).Source] = true, true
	}
	type reason struct{ why, do string }
	lacks := map[reason][]string{}
	for _, divided := range d.Divided {
		found[divided.Quantity] = true
		parent := reason{why: divided.Source + ": its parent measures it, and its claims have their parts of that"}
		lacks[parent] = append(lacks[parent], nameOf(divided.Quantity))
	}
	for q := range n.catalogue {
		if spec := &n.catalogue[q]; !spec.Internal && !found[spec.Name] {
			why, do := whyAbsent(driver.Quantity(q), d.Of.Absent, n.sources, readers)
			lacks[reason{why, do}] = append(lacks[reason{why, do}], nameOf(spec.Name))
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
func (n *known) claim(name string) []Section {
	var out []Section
	for i := range n.Claims {
		h := &n.Claims[i]
		if h.Namespace+"/"+h.Name != name {
			continue
		}
		facts := n.holding(h)
		facts.fact("UID", h.UID)
		facts.fact("smallest fit", h.Advice)
		out = append(out, facts)
		values := n.values("Values of the claim", h.Values)
		if d := n.deviceOf(h.ID); d != nil {
			out = append(out, n.heldBy(d, name), values, n.absent(d))
		} else {
			out = append(out, values)
		}
	}
	return out
}

// deviceOf returns a device, nil if it is gone.
func (n *known) deviceOf(id driver.ID) *DeviceReport {
	at := slices.IndexFunc(n.Devices, func(d DeviceReport) bool { return d.ID == id })
	if at < 0 {
		return nil
	}
	return &n.Devices[at]
}

// holding describes how a claim or pod holds a device.
func (n *known) holding(h *HolderReport) Section {
	s := Section{Title: h.Device}
	s.Rows = append(s.Rows, []Item{{Text: "device"}, {Text: h.String(), Device: h.String()}})
	if d := n.deviceOf(h.ID); d != nil {
		s.state("state of the device", d.State)
	}
	if h.Ended == nil {
		s.stalled(n.stallOf(h))
		if h.Stall != nil && h.Stall.Unknown != stall.Shared {
			s.fact("progress", h.Stall.Text)
		}
	}
	s.fact("held since", Clock(h.Since)+", for "+Duration(h.AllocatedSeconds))
	last := "not measured"
	if h.LastActive != nil {
		last = Ago(n.Time, *h.LastActive)
	}
	if h.Ended != nil {
		s.fact("ended", Clock(*h.Ended))
	}
	s.fact("last active", last)
	return s
}

// stallOf returns the verdict of a holder: its own, or that of the claim that holds its device.
func (n *known) stallOf(h *HolderReport) *StallReport {
	for i := range n.Claims {
		if c := &n.Claims[i]; c.ID == h.ID && c.Ended == nil && c.Stall != nil && c.Stall.Stalled != nil {
			return c.Stall
		}
	}
	return h.Stall
}

// pod describes NAMESPACE/NAME: the pod itself, and each device that it holds, or held within the
// retention.
func (n *known) pod(name string) []Section {
	of := Section{Title: "Pod"}
	var holds []Section
	for _, rows := range [][]HolderReport{n.Pods, n.YoungPods} {
		for i := range rows {
			h := &rows[i]
			if h.Namespace+"/"+h.Name != name {
				continue
			}
			if len(of.Rows) == 0 {
				of.fact("UID", h.UID)
			}
			facts := n.holding(h)
			if d := n.deviceOf(h.ID); d != nil {
				facts.claims(d, name)
			}
			holds = append(holds, facts, n.values("Values of the pod", h.Values))
		}
	}
	if n.info != nil {
		of.Rows = nil
		of.fact("UID", n.info.UID)
		if meta := n.info.Meta; meta != nil {
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
func (s *Section) claims(d *DeviceReport, pod string) {
	for i := range d.Shares {
		if claim := d.Shares[i].claimName(); claim != "" && slices.Contains(d.Shares[i].Pods, pod) {
			s.Rows = append(s.Rows, []Item{{Text: "through the claim"}, {Text: claim, Claim: claim}})
		}
	}
}
