package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/web"
)

// holder is a claim or a pod.
type holder struct{ Kind, Namespace, Name string }

func (h holder) String() string { return h.Namespace + "/" + h.Name }

// ownPage is the page of a claim or pod for users who may not see everything of its node. It has
// nothing of other namespaces. Programs can get it as JSON.
type ownPage struct {
	Kind      string        `json:"kind"`
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Node      string        `json:"node"`
	Time      time.Time     `json:"time"`
	Devices   []ownDevice   `json:"devices"`
	Incidents []ownIncident `json:"incidents"`

	Grafana string `json:"-"`
}

// ownDevice is a claim's or pod's part of a device.
type ownDevice struct {
	driver.ID
	State  ledger.State      `json:"state,omitempty"` // of the device; "": the holder has ended
	Claims []string          `json:"claims,omitempty"`
	Pods   []string          `json:"pods,omitempty"`
	Since  time.Time         `json:"since"`
	Ended  *time.Time        `json:"ended,omitempty"`
	Active *time.Time        `json:"lastActive,omitempty"`
	Values []web.ValueReport `json:"values,omitempty"`
}

// ownIncident is the part of an incident that the user may see. It omits the text and the holders,
// which may name objects of other namespaces.
type ownIncident struct {
	Kind   recorder.Kind `json:"kind"`
	Code   string        `json:"code,omitempty"`
	Device driver.ID     `json:"device,omitzero"`
	Onset  time.Time     `json:"onset"`
	Last   time.Time     `json:"last"`
	Count  int           `json:"count"`
	End    *time.Time    `json:"end,omitempty"`
}

// newOwnPage selects what belongs to a holder.
func newOwnPage(of holder, node string, r *web.Report, incidents []*recorder.Incident) ownPage {
	out := ownPage{Kind: of.Kind, Namespace: of.Namespace, Name: of.Name, Node: node, Time: r.Time}
	rows := r.Claims
	if of.Kind == "pod" {
		rows = slices.Concat(r.Pods, r.YoungPods)
	}
	for i := range rows {
		h := &rows[i]
		if h.Namespace != of.Namespace || h.Name != of.Name || h.Aggregated {
			continue
		}
		d := ownDevice{
			ID: h.ID, Since: h.Since, Ended: h.Ended, Active: h.LastActive,
			Values: append(h.Values,
				web.ValueReport{Quantity: "allocated_seconds", Value: h.AllocatedSeconds}),
		}
		if h.Ended == nil {
			d.fill(of, r.Devices)
		}
		out.Devices = append(out.Devices, d)
	}
	for _, i := range incidents {
		hit := append(i.Claims(), i.PossibleClaims()...)
		if of.Kind == "pod" {
			hit = append(i.Pods(), i.PossiblePods()...)
		}
		if slices.Contains(hit, of.String()) {
			out.Incidents = append(out.Incidents, ownIncident{i.Kind, i.Code, i.Device, i.Onset, i.Last, i.Count, i.End})
		}
	}
	return out
}

// fill adds the state of the device, and the holder's claims and pods that have it.
func (d *ownDevice) fill(of holder, devices []web.DeviceReport) {
	for i := range devices {
		if devices[i].ID != d.ID {
			continue
		}
		d.State = devices[i].State
		for _, s := range devices[i].Shares {
			if of.has(&s) {
				d.share(of.Namespace, &s)
			}
		}
	}
}

// has reports whether a share belongs to the holder.
func (h holder) has(s *web.ShareReport) bool {
	if s.Namespace != h.Namespace {
		return false
	}
	return h.Kind == "claim" && s.Claim == h.Name || h.Kind == "pod" && slices.Contains(s.Pods, h.String())
}

// share adds a share's claim, and its pods in the namespace.
func (d *ownDevice) share(namespace string, s *web.ShareReport) {
	if s.Claim != "" {
		d.Claims = append(d.Claims, s.Claim)
	}
	for _, p := range s.Pods {
		if name, own := strings.CutPrefix(p, namespace+"/"); own {
			d.Pods = append(d.Pods, name)
		}
	}
}

// serveOwn serves a claim or pod to users who may see it, but not everything of its node.
func (g *gateway) serveOwn(w http.ResponseWriter, r *http.Request, node string, of holder) {
	select {
	case g.reading <- struct{}{}:
		defer func() { <-g.reading }()
	case <-r.Context().Done():
		return
	}
	address, _, err := g.exporters.address(r.Context(), node)
	var report web.Report
	if err == nil {
		_, err = g.ask(r.Context(), address, "/api/v1/snapshot", "", maxAnswer, &report)
	}
	var incidents web.IncidentsReport
	if err == nil {
		// An error is ignored: without a recorder, there are no incidents.
		_, _ = g.ask(r.Context(), address, "/api/v1/incidents", "", maxAnswer, &incidents)
	}
	if err != nil {
		respond(w, http.StatusBadGateway, "the exporter of node "+node+": "+reason(err))
		return
	}
	content := newOwnPage(of, node, &report, slices.DeleteFunc(incidents.Incidents,
		func(i *recorder.Incident) bool { return i == nil }))
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(content) // fails if the client is gone
		return
	}
	content.Grafana = g.Grafana
	page, err := render("own.html", content)
	if err != nil {
		respond(w, http.StatusInternalServerError, "the page can't be made")
		return
	}
	page.serve(w, r)
}

// clock formats a time.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// figure formats a value.
func figure(v web.ValueReport) string {
	labels := make([]string, 0, len(v.Labels))
	for name, value := range v.Labels {
		labels = append(labels, name+"="+value)
	}
	slices.Sort(labels)
	name := strings.ReplaceAll(strings.Join(append([]string{v.Quantity}, labels...), " "), "_", " ")
	switch v.Quantity {
	case "utilization":
		return fmt.Sprintf("%s %.1f %%", name, 100*v.Value)
	case "memory_used", "memory_capacity":
		return fmt.Sprintf("%s %.1f GiB", name, v.Value/(1<<30))
	case "power":
		return fmt.Sprintf("%s %.0f W", name, v.Value)
	default:
		return fmt.Sprintf("%s %.4g", name, v.Value)
	}
}
