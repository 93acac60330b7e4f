package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
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
	State  ledger.State          `json:"state,omitempty"` // of the device; "": the holder has ended
	Claims []string              `json:"claims,omitempty"`
	Pods   []string              `json:"pods,omitempty"`
	Since  time.Time             `json:"since"`
	Ended  *time.Time            `json:"ended,omitempty"`
	Active *time.Time            `json:"lastActive,omitempty"`
	Values []present.ValueReport `json:"values,omitempty"`
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

// newOwnPage returns the page of a holder. All rows, shares and incidents are the holder's.
func newOwnPage(of holder, node string, r *present.Report, incidents []*recorder.Incident) ownPage {
	out := ownPage{Kind: of.Kind, Namespace: of.Namespace, Name: of.Name, Node: node, Time: r.Time}
	rows := r.Claims
	if of.Kind == "pod" {
		rows = slices.Concat(r.Pods, r.YoungPods)
	}
	for i := range rows {
		h := &rows[i]
		d := ownDevice{
			ID: h.ID, Since: h.Since, Ended: h.Ended, Active: h.LastActive,
			Values: append(h.Values,
				present.ValueReport{Quantity: "allocated_seconds", Value: h.AllocatedSeconds}),
		}
		if h.Ended == nil {
			d.fill(of, r.Devices)
		}
		out.Devices = append(out.Devices, d)
	}
	for _, i := range incidents {
		out.Incidents = append(out.Incidents, ownIncident{i.Kind, i.Code, i.Device, i.Onset, i.Last, i.Count, i.End})
	}
	return out
}

// fill adds the state of the device, and the holder's claims and pods that have it.
func (d *ownDevice) fill(of holder, devices []present.DeviceReport) {
	for i := range devices {
		if devices[i].ID != d.ID {
			continue
		}
		d.State = devices[i].State
		for _, s := range devices[i].Shares {
			d.share(of.Namespace, &s)
		}
	}
}

// has reports whether a share belongs to the holder.
func (h holder) has(s *present.ShareReport) bool {
	if s.Namespace != h.Namespace {
		return false
	}
	return h.Kind == "claim" && s.Claim == h.Name || h.Kind == "pod" && slices.Contains(s.Pods, h.String())
}

// share adds a share's claim, and its pods in the namespace.
func (d *ownDevice) share(namespace string, s *present.ShareReport) {
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
func (g *gateway) serveOwn(w http.ResponseWriter, r *http.Request, user *access.User, node string, of holder) {
	leave, ok := g.places.enter(w, node, user)
	if !ok {
		return
	}
	defer leave()
	report, incidents, err := g.readOwn(r.Context(), node, of)
	if err != nil {
		g.respondFailure(w, node, err)
		return
	}
	content := newOwnPage(of, node, &report, incidents)
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(content) // fails if the client is gone
		return
	}
	content.Grafana = g.Grafana
	g.pages.serve(w, r, "own.html", "", func() any { return content })
}

// readOwn reads what a node knows of a holder. Devices are those that it shares.
func (g *gateway) readOwn(ctx context.Context, node string, of holder) (
	report present.Report, incidents []*recorder.Incident, err error,
) {
	address, _, err := g.exporters.address(ctx, node)
	if err != nil {
		return report, nil, err
	}
	memory := g.memory.Open(maxOwn)
	defer memory.Close()
	only := decode.Filter{Device: of.hasDevice, Holder: of.isRow, Incident: of.subject().Hit}
	_, err = g.ask(ctx, address, "/api/v1/snapshot", "", func(r io.Reader) (err error) {
		report, err = decode.Report(r, memory, only)
		return err
	})
	if err != nil {
		return report, nil, err
	}
	_, err = g.ask(ctx, address, "/api/v1/incidents", "", func(r io.Reader) error {
		found, err := decode.Incidents(r, memory, only)
		incidents = found.Incidents
		return err
	})
	if errors.Is(err, errUnexpected) { // without a recorder, there are no incidents
		err = nil
	}
	return report, incidents, err
}

// subject returns the holder as the presenter knows it.
func (h holder) subject() present.Subject {
	if h.Kind == "pod" {
		return present.Subject{Pod: h.String()}
	}
	return present.Subject{Claim: h.String()}
}

// isRow reports whether a row is the holder's.
func (h holder) isRow(row *present.HolderReport) bool {
	return row.Namespace == h.Namespace && row.Name == h.Name && !row.Aggregated
}

// hasDevice reports whether the holder has a share of a device, and removes the other shares.
func (h holder) hasDevice(d *present.DeviceReport) bool {
	d.Shares = slices.DeleteFunc(d.Shares, func(s present.ShareReport) bool { return !h.has(&s) })
	return len(d.Shares) > 0
}

// figure describes a value.
func figure(v present.ValueReport) string {
	name, text := v.Texts(driver.Standard())
	return name + " " + text
}
