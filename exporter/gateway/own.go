package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// holder is a claim or a pod.
type holder struct{ Kind, Namespace, Name string }

func (h holder) String() string { return h.Namespace + "/" + h.Name }

// ownPage is the page of a claim or pod for users who may not see everything of its node.
type ownPage struct {
	present.Detail
	Grafana string
}

// redact removes what belongs to others from what a node has of a holder: texts and other holders
// of incidents, pods of other namespaces, and all of its devices but their states and its shares.
func (h holder) redact(r *present.Report, incidents []*recorder.Incident) {
	for i := range r.Devices {
		d := &r.Devices[i]
		for j := range d.Shares {
			s := &d.Shares[j]
			s.Pods = slices.DeleteFunc(s.Pods, h.isForeign)
			s.Holds = slices.DeleteFunc(s.Holds, func(of present.HoldReport) bool { return h.isForeign(of.Pod) })
		}
		*d = present.DeviceReport{ID: d.ID, State: d.State, Attribution: d.Attribution, Shares: d.Shares}
	}
	for n, i := range incidents {
		incidents[n] = &recorder.Incident{
			Kind: i.Kind, Code: i.Code, Device: i.Device, Onset: i.Onset, Last: i.Last, Count: i.Count, End: i.End,
			Text: strings.TrimSpace(string(i.Kind)+" "+strings.ReplaceAll(i.Code, ",", ", ")) + " on " + i.Device.String(),
			Holders: slices.DeleteFunc(i.Holders, func(of recorder.Holder) bool {
				return of.Namespace != h.Namespace || of.Claim != h.Name && of.Pod != h.Name
			}),
		}
	}
}

// isForeign reports whether a pod is of another namespace.
func (h holder) isForeign(pod string) bool { return !strings.HasPrefix(pod, h.Namespace+"/") }

// has reports whether a share belongs to the holder.
func (h holder) has(s *present.ShareReport) bool {
	if s.Namespace != h.Namespace {
		return false
	}
	return h.Kind == "claim" && s.Claim == h.Name || h.Kind == "pod" && slices.Contains(s.Pods, h.String())
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
	of.redact(&report, incidents)
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"report": report, "incidents": incidents}) // fails if the client is gone
		return
	}
	g.pages.serve(w, r, "own.html", "", func() any {
		report.Node = node
		d := present.Describe(driver.Standard(), &report, incidents, nil, of.subject())
		d.Sections = slices.DeleteFunc(d.Sections, func(s present.Section) bool { return s.IsAbsent() })
		page := ownPage{Detail: d}
		if g.Grafana != "" {
			page.Grafana = g.Grafana + "/d/dra-claim?" + url.Values{
				"var-node": {node}, "var-namespace": {of.Namespace}, "var-" + of.Kind: {of.Name},
			}.Encode()
		}
		return page
	})
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
