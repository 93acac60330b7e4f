package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// incidents returns the response of /api/v1/incidents.
func (p *program) incidents() []*recorder.Incident {
	var out present.IncidentsReport
	must.Do(p.t, json.Unmarshal(p.page("/api/v1/incidents").Body, &out))
	return out.Incidents
}

// receipts returns the response of /api/v1/receipts.
func (p *program) receipts() []*recorder.Receipt {
	var out present.ReceiptsReport
	must.Do(p.t, json.Unmarshal(p.page("/api/v1/receipts").Body, &out))
	return out.Receipts
}

// recording returns an incident with its recording.
func (p *program) recording(id string) *recorder.Incident {
	var out present.IncidentsReport
	err := json.Unmarshal(p.page("/api/v1/incidents?id="+id).Body, &out)
	must.That(p.t, err == nil && len(out.Incidents) == 1, "%d incidents are called %s: %v", len(out.Incidents), id, err)
	return out.Incidents[0]
}

// An XID is an incident of the pod that holds the device, in the JSON, on the page, in the log and
// in the metrics. It is kept after kill -9, and so is the receipt of a claim that has ended, even
// if other files are damaged.
func TestIncident(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := pod("team", "a", "claim-a", gpu(0))
	n.setPods(a, pod("team", "b", "claim-b", gpu(1)))
	var xids atomic.Int64
	vendor := vendor(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "power{uuid=%q} 100\npower{uuid=%q} 200\nxid_total{uuid=%[1]q,code=\"79\"} %[3]d\n",
			uuid(0), uuid(1), xids.Load())
	})
	config := n.scrapeConfig(endpoint("vendor", vendor) +
		"  - {name: xid_total, quantity: errors, labels: {kind: xid}, labels_from: {code: code}}\n")
	folder := n.path("incidents")
	f := n.flags(flags{
		"inventory.file": n.inventory(gpus(2)), "source.scrape.config": config, "incidents.dir": folder,
		"retention": "3s", // a receipt is made at the latest when the claim is forgotten
	})
	p := start(t, f)
	p.eventually("errors are read", func() bool {
		return len(p.scrape().rows("dra_device_errors_total", "code", "79")) == 1
	})
	if all := p.incidents(); len(all) != 0 {
		t.Errorf("incidents before there was one: %+v", all)
	}
	p.eventually("the holders are known for some time", func() bool {
		held := p.scrape().rows("dra_claim_allocated_seconds_total", "resourceclaim_name", "claim-a")
		return len(held) == 1 && held[0].GetCounter().GetValue() > 3
	})
	xids.Store(1)
	p.eventually("the incident", func() bool { return len(p.incidents()) == 1 })
	check := func(i *recorder.Incident) {
		t.Helper()
		if i.Kind != recorder.XID || i.Code != "79" || i.Device.Device != "gpu-0" ||
			strings.Join(i.Pods(), " ") != "team/a" || strings.Join(i.Claims(), " ") != "team/claim-a" {
			t.Errorf("the incident is %+v", i)
		}
	}
	check(p.incidents()[0])
	expect.That(t, strings.Contains(string(p.page("/").Body), "gpu-0: XID 79"), "the page does not show the incident")
	p.scrape().want(1, "dra_exporter_incidents_total", "kind", "xid")
	if log := p.Log(); strings.Count(log, "msg=incident") != 1 || !strings.Contains(log, "team/a") {
		t.Errorf("the log does not have the incident once, with its pod: %s", log)
	}
	history := p.page("/api/v1/history?claim=team/claim-b").Body
	if !strings.Contains(string(history), `"quantity":"power"`) || strings.Contains(string(history), "claim-a") {
		t.Errorf("the history of a claim: %s", history)
	}
	xids.Store(3)
	p.eventually("the incident again", func() bool { return p.incidents()[0].Count == 3 })
	p.scrape().want(3, "dra_exporter_incidents_total", "kind", "xid")
	p.scrape().want(1, "dra_exporter_incidents_open", "kind", "xid")
	p.scrape().want(1, "dra_claim_incident_open", "resourceclaim_name", "claim-a", "kind", "xid")
	n.setPods(a)
	p.eventually("the receipt", func() bool { return len(p.receipts()) == 1 })
	receipts := p.receipts()
	if r := receipts[0]; r.SubAccountName != "team" || r.ResourceName != "claim-b" || r.ChargeCategory != "Usage" ||
		len(r.Devices) != 1 || r.Devices[0].Device != "gpu-1" || r.Devices[0].Attribution != "exclusive" ||
		r.Figure(driver.Energy) == nil || r.Figure(driver.Energy).ErrorBound == nil ||
		r.Figure(driver.Energy).ConsumedUnit != "joules" || r.Figure(driver.Energy).MeasuredSeconds <= 0 {
		t.Errorf("the receipt is %+v", r)
	}
	p.eventually("a file each", func() bool { return len(files(t, folder)) == 2 })
	time.Sleep(7 * time.Second) // what happens again is stored every 5 s
	p.Kill()
	for _, name := range []string{"incidents-0.json.gz", "receipts-0.json.gz"} {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), []byte("damaged"), 0o600))
	}
	p = start(t, f)
	if diff := cmp.Diff(receipts, p.receipts()); diff != "" {
		t.Errorf("receipts after a restart (-before +after):\n%s", diff)
	}
	p.scrape().want(1, "dra_exporter_input_rejected_total", "input", "receipts", "reason", "malformed")
	if all := p.incidents(); len(all) != 1 {
		t.Fatalf("%d incidents after a restart, want 1", len(all))
	}
	check(p.incidents()[0])
	if i := p.recording(p.incidents()[0].ID); i.Count != 3 || !i.Open() || i.Chart == nil {
		t.Errorf("after a restart the incident is %+v", i)
	}
	p.scrape().want(1, "dra_exporter_input_rejected_total", "input", "incidents", "reason", "malformed")
	off := start(t, n.flags(flags{"no-recorder": ""}))
	expect.Is(t, off.status("/api/v1/incidents"), http.StatusNotFound, "without the recorder the status")
}

func files(t *testing.T, folder string) []string {
	names := must.Get(filepath.Glob(filepath.Join(folder, "*.json.gz")))(t)
	return names
}
