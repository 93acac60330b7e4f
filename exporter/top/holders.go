package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// Holder is a claim, a pod, or a namespace with everything that its claims hold. Its values are its
// parts of the devices': the utilization is the mean over devices, all others are sums.
type Holder struct {
	Node      string `json:"node,omitempty"` // of claims and pods
	Namespace string `json:"namespace"`
	Name      string `json:"name,omitempty"` // of claims and pods
	Measures
	HeldSeconds float64  `json:"heldSeconds"` // the longest hold
	Devices     []string `json:"devices"`     // DRIVER/POOL/DEVICE; for namespaces NODE/DRIVER/POOL/DEVICE
	Claims      []string `json:"claims"`      // NAMESPACE/NAME
	Pods        []string `json:"pods"`
	// Parts is what the exporter reports about it, by device; nil for namespaces.
	Parts []*present.HolderReport `json:"parts,omitempty"`

	from  string // the exporter; "" for namespaces
	busy  float64
	reads int // number of its devices that report utilization
}

// id returns NAMESPACE/NAME, or the namespace.
func (h *Holder) id() string { return strings.TrimSuffix(h.Namespace+"/"+h.Name, "/") }

// links has the pods of each claim and the claims of each pod, by the devices' shares.
type links struct{ pods, claims map[string][]string }

func linksOf(r *present.Report) links {
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

// claimHolders returns a row for each claim of a report that holds a device.
func claimHolders(r *present.Report) []Holder {
	between := linksOf(r)
	out := holders(r, r.Claims)
	for i := range out {
		out[i].Claims, out[i].Pods = []string{out[i].id()}, distinct(between.pods[out[i].id()])
	}
	return out
}

// podHolders returns a row for each pod of a report that holds a device.
func podHolders(r *present.Report) []Holder {
	between := linksOf(r)
	out := holders(r, r.Pods, r.YoungPods)
	for i := range out {
		out[i].Claims, out[i].Pods = distinct(between.claims[out[i].id()]), []string{out[i].id()}
	}
	return out
}

// holders returns a row for each holder that has not ended and is not aggregated.
func holders(r *present.Report, lists ...[]present.HolderReport) []Holder {
	states := map[string]ledger.State{}
	for i := range r.Devices {
		states[r.Devices[i].String()] = r.Devices[i].State
	}
	var out []Holder
	at := map[string]int{}
	for _, list := range lists {
		for i := range list {
			part := &list[i]
			if part.Ended != nil || part.Aggregated || part.Name == "" {
				continue
			}
			key := part.Namespace + "/" + part.Name
			n, known := at[key]
			if !known {
				n = len(out)
				at[key] = n
				out = append(out, Holder{Node: r.Node, Namespace: part.Namespace, Name: part.Name, Devices: []string{}})
			}
			h, of := &out[n], Measures{State: states[part.String()]}
			of.measure(part.Values)
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
func (h *Holder) add(of *Measures, devices int) {
	if h.State == "" || of.State != "" && ledger.CompareAttention(of.State, h.State) < 0 {
		h.State = of.State
	}
	if of.Utilization != nil {
		h.busy, h.reads = h.busy+*of.Utilization*float64(devices), h.reads+devices
		mean := min(math.MaxFloat64, h.busy/float64(h.reads))
		h.Utilization = &mean
	}
	h.MemoryUsed, h.Power = sum(h.MemoryUsed, of.MemoryUsed), sum(h.Power, of.Power)
	h.Energy = sum(h.Energy, of.Energy)
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

// namespaceHolders sums the claims of each namespace over all nodes. A claim with pods on several
// nodes counts once.
func namespaceHolders(claims []Holder) []Holder {
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
		h.add(&c.Measures, max(1, c.reads))
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

// sortHolders sorts rows by an order, then by name.
func sortHolders(rows []Holder, by Order, reverse bool) {
	slices.SortStableFunc(rows, func(a, b Holder) int {
		order := a.compare(&b.Measures, by)
		if by == ByDevice {
			order = present.CompareNames(strings.Join(a.Devices, " "), strings.Join(b.Devices, " "))
		}
		return cmp.Or(reversed(order, reverse), present.CompareNames(a.id(), b.id()), present.CompareNames(a.Node, b.Node))
	})
}

// filterHolders returns the rows that contain all words of a text.
func filterHolders(rows []Holder, text string) []Holder {
	return slices.DeleteFunc(slices.Clone(rows), func(h Holder) bool {
		return !hasWords(text, slices.Concat(
			[]string{h.Node, h.id(), string(h.State)}, h.Devices, h.Claims, h.Pods,
		))
	})
}

// holderColumns returns the columns of claims, pods or namespaces.
func holderColumns(view View, nodes, wide bool) []Column[Holder] {
	state := Column[Holder]{Title: "STATE", cell: func(h *Holder) string { return cmp.Or(string(h.State), "-") }}
	values := measured(wide, func(h *Holder) *Measures { return &h.Measures })
	if view == ViewNamespaces {
		count := func(title string, of func(*Holder) []string) Column[Holder] {
			return Column[Holder]{Title: title, Right: true, cell: func(h *Holder) string { return strconv.Itoa(len(of(h))) }}
		}
		return append([]Column[Holder]{
			{Title: "NAMESPACE", least: 12, cell: (*Holder).id},
			state,
			count("DEVICES", func(h *Holder) []string { return h.Devices }),
			count("CLAIMS", func(h *Holder) []string { return h.Claims }),
			count("PODS", func(h *Holder) []string { return h.Pods }),
		}, values...)
	}
	title, other := "CLAIM", Column[Holder]{
		Title: "PODS", least: 18, cell: func(h *Holder) string { return short(h.Pods, h.Namespace, wide) },
	}
	if view == ViewPods {
		title, other = "POD", Column[Holder]{
			Title: "CLAIMS", least: 14, drop: 6, cell: func(h *Holder) string { return short(h.Claims, h.Namespace, wide) },
		}
	}
	out := []Column[Holder]{{Title: title, least: 26, cell: (*Holder).id}}
	if nodes {
		out = append(out, Column[Holder]{Title: "NODE", least: 8, cell: func(h *Holder) string { return h.Node }})
	}
	out = append(append(out, state), values...)
	return append(out,
		Column[Holder]{Title: "HELD", Right: true, drop: 4, cell: func(h *Holder) string {
			return number(&h.HeldSeconds, 1./60, "%.0f min")
		}},
		Column[Holder]{Title: "DEVICES", least: 10, drop: 5, cell: func(h *Holder) string {
			return list(deviceNames(h.Devices), wide)
		}}, other)
}

// deviceNames returns the names of devices without driver and pool.
func deviceNames(ids []string) []string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, id[strings.LastIndex(id, "/")+1:])
	}
	return out
}

// short lists names. It omits the namespace if it is that of the row.
func short(names []string, namespace string, all bool) string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, strings.TrimPrefix(name, namespace+"/"))
	}
	return list(out, all)
}

// counted formats a number of things.
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
