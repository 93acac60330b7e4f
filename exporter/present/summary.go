package present

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// MaxSummary is the maximum number of claims, and of incidents, in a summary.
const MaxSummary = 512

// Summary is what /api/v1/summary serves: what needs attention on the node, and which claims are
// affected. It has only times of past events, so that its entity tag changes only when something
// happens.
type Summary struct {
	Node string `json:"node"`
	// Devices is the number of devices by state.
	Devices map[book.State]int `json:"devices"`
	// Claims are those that hold a device, without admin access. Those that need attention are first.
	Claims []ClaimSummary `json:"claims"`
	// Incidents are the open ones.
	Incidents []IncidentSummary `json:"incidents"`
	// Down has the reason for each source that is down.
	Down map[string]driver.Reason `json:"down,omitempty"`
	// More is the number of claims and incidents that are left out, since there are too many.
	More int `json:"more,omitempty"`
}

// ClaimSummary is a claim that holds devices.
type ClaimSummary struct {
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	State     book.State `json:"state"` // of the device that needs attention most
	Devices   int        `json:"devices"`
	Pods      []string   `json:"pods"` // their names
}

// IncidentSummary is an incident that is open.
type IncidentSummary struct {
	ID     string        `json:"id"`
	Kind   recorder.Kind `json:"kind"`
	Device driver.ID     `json:"device,omitzero"`
	Onset  time.Time     `json:"onset"`
	Hit    []string      `json:"hit"` // claims that it hit, or may have hit, as NAMESPACE/NAME
	// Possible are those claims of Hit that it may have hit.
	Possible []string `json:"possible,omitempty"`
}

// Possibly reports whether a claim of Hit is only possibly hit.
func (i IncidentSummary) Possibly(claim string) bool { return slices.Contains(i.Possible, claim) }

// summaryOf returns the summary of an incident.
func summaryOf(i *recorder.Incident) IncidentSummary {
	certain, possible := i.Claims(), i.PossibleClaims()
	return IncidentSummary{
		ID: i.ID, Kind: i.Kind, Device: i.Device, Onset: i.Onset.UTC(), Hit: distinct(slices.Concat(certain, possible)),
		Possible: slices.DeleteFunc(possible, func(claim string) bool { return slices.Contains(certain, claim) }),
	}
}

// NewSummary returns the summary of a snapshot.
func NewSummary(s *exposition.Snapshot, c Config) Summary {
	states := s.States(c.QuietAfter)
	out := Summary{
		Node: c.Node, Devices: map[book.State]int{}, Claims: claimsOf(s, states), Incidents: []IncidentSummary{},
		Down: downOf(c.Sources),
	}
	for _, state := range states {
		out.Devices[state]++
	}
	if c.Recorder != nil {
		for _, i := range c.Recorder.Incidents() {
			if i.Open() {
				out.Incidents = append(out.Incidents, summaryOf(i))
			}
		}
	}
	out.More = max(0, len(out.Claims)-MaxSummary) + max(0, len(out.Incidents)-MaxSummary)
	out.Claims = out.Claims[:min(len(out.Claims), MaxSummary)]
	out.Incidents = out.Incidents[:min(len(out.Incidents), MaxSummary)]
	return out
}

// downOf returns the reasons of the sources that are down.
func downOf(sources []Source) map[string]driver.Reason {
	out := map[string]driver.Reason{}
	for _, source := range sources {
		if source.Down != "" {
			out[source.Name] = source.Down
		}
	}
	return out
}

// claimsOf returns the claims that hold devices. states are the states of the devices.
func claimsOf(s *exposition.Snapshot, states []book.State) []ClaimSummary {
	claims := map[podresources.Claim]*ClaimSummary{}
	for i, state := range states {
		for _, share := range s.Devices[i].Shares {
			if share.Admin || share.Claim.Name == "" {
				continue
			}
			of := claims[share.Claim]
			if of == nil {
				of = &ClaimSummary{Namespace: share.Claim.Namespace, Name: share.Claim.Name, State: state}
				claims[share.Claim] = of
			}
			of.Devices++
			if book.CompareAttention(state, of.State) < 0 {
				of.State = state
			}
			for _, p := range share.Pods {
				of.Pods = append(of.Pods, p.Name)
			}
		}
	}
	out := make([]ClaimSummary, 0, len(claims))
	for _, of := range claims {
		of.Pods = distinct(of.Pods)
		out = append(out, *of)
	}
	slices.SortFunc(out, func(a, b ClaimSummary) int {
		return cmp.Or(book.CompareAttention(a.State, b.State), CompareNames(a.Namespace, b.Namespace),
			CompareNames(a.Name, b.Name))
	})
	return out
}

func distinct(names []string) []string {
	out := append([]string{}, names...)
	slices.SortFunc(out, CompareNames)
	return slices.Compact(out)
}
