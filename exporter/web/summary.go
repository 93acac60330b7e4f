package web

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
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
	Devices map[ledger.State]int `json:"devices"`
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
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	State     ledger.State `json:"state"` // of the device that needs attention most
	Devices   int          `json:"devices"`
	Pods      []string     `json:"pods"` // their names
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

// summary returns the summary of a snapshot. down are the sources that are down.
func (c Config) summary(s *exposition.Snapshot, down map[string]driver.Reason) Summary {
	out := Summary{
		Node: c.Node, Devices: map[ledger.State]int{}, Claims: []ClaimSummary{}, Incidents: []IncidentSummary{}, Down: down,
	}
	states := s.States(c.QuietAfter)
	for _, state := range states {
		out.Devices[state]++
	}
	out.Claims = claimsOf(s, states)
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

// claimsOf returns the claims that hold devices. states are the states of the devices.
func claimsOf(s *exposition.Snapshot, states []ledger.State) []ClaimSummary {
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
			if ledger.CompareAttention(state, of.State) < 0 {
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
		return cmp.Or(ledger.CompareAttention(a.State, b.State), CompareNames(a.Namespace, b.Namespace),
			CompareNames(a.Name, b.Name))
	})
	return out
}

// down returns the reasons of the sources that are down.
func (c Config) down() map[string]driver.Reason {
	if c.Sources == nil {
		return nil
	}
	out := map[string]driver.Reason{}
	for _, source := range c.Sources() {
		if source.Down != "" {
			out[source.Name] = source.Down
		}
	}
	return out
}

func distinct(names []string) []string {
	out := append([]string{}, names...)
	slices.SortFunc(out, CompareNames)
	return slices.Compact(out)
}

// summaries serves the summary of the latest snapshot. The summary is made once for all requests.
// Its entity tag is a hash of its content.
type summaries struct {
	Config

	turns chan struct{} // has a value while a summary is made; guards the fields below
	of    time.Time     // time of the snapshot
	down  map[string]driver.Reason
	body  []byte
	tag   string
}

// ServeHTTP implements [http.Handler].
func (c *summaries) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := c.Latest()
	if s == nil {
		respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
		return
	}
	body, tag, err := c.ofSnapshot(r.Context(), s)
	if err != nil {
		respond(w, http.StatusInternalServerError, "the answer could not be made\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if Tagged(w, r, tag) {
		return
	}
	_, _ = w.Write(body) // fails if the client is gone
}

// ofSnapshot returns the summary of a snapshot and its tag. It fails if ctx ends first.
func (c *summaries) ofSnapshot(ctx context.Context, s *exposition.Snapshot) (body []byte, tag string, err error) {
	if err := enter(ctx, c.turns); err != nil {
		return nil, "", err
	}
	defer func() { <-c.turns }()
	if down := c.Config.down(); c.body == nil || !c.of.Equal(s.Time) || !maps.Equal(c.down, down) {
		if body, err = json.Marshal(c.summary(s, down)); err != nil {
			return nil, "", fmt.Errorf("encode summary: %w", err)
		}
		c.of, c.down, c.body, c.tag = s.Time, down, body, TagOf(body)
	}
	return c.body, c.tag, nil
}

// TagOf returns the entity tag of a body.
func TagOf(body []byte) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf(`"%x"`, sum[:16])
}

// Tagged gives an answer an entity tag. If the client already has the answer, Tagged answers with
// status 304 and returns true.
func Tagged(w http.ResponseWriter, r *http.Request, tag string) bool {
	w.Header().Set("Etag", tag)
	w.Header().Set("Cache-Control", "no-cache")
	for have := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if strings.TrimSpace(have) == tag {
			w.WriteHeader(http.StatusNotModified)
			return true
		}
	}
	return false
}
