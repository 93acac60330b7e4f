package web

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A GPU that no slice lists, since its partitions are listed, is not free. The report has the
// source of the claims' parts of its power, and the known facts of both.
func TestReportOfPartition(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.In.Inventory = driver.Inventory{
		jointest.ID("gpu-0"): {Unlisted: true, Hardware: driver.Hardware{
			UUID: "gpu-0", Serial: "1650823456700", FirmwareVersion: "96.00.61.00.01", DriverVersion: "580.65.06",
			CUDAVersion: "13.0",
		}},
		jointest.ID("part"): {Hardware: driver.Hardware{
			UUID: "part", Kind: driver.KindPartition, Parent: "gpu-0", ParentShare: 1.0 / 7, Profile: "1g.10gb",
		}},
	}
	h.In.View.Allocations = []podresources.Allocation{jointest.Allocation("part", "c", "p")}
	h.Read(jointest.Watts(70), driver.Reading{Quantity: driver.Energy, Value: 1})
	h.ReadOf("part", driver.Reading{Quantity: driver.MemoryUsed, Value: 1})
	h.Pass(time.Second)
	url := serving(t, h.Last, nil).URL
	_, body := fetch(t, url+"/api/v1/snapshot")
	var report present.Report
	must.Do(t, json.Unmarshal([]byte(body), &report))
	parent, part := report.Devices[0], report.Devices[1]
	expect.That(t, parent.State == book.StatePartitioned && parent.Unlisted && !part.Unlisted, "the report says %s", body)
	divided := []present.DividedReport{
		{Quantity: "power", Source: "a (divided by share)"}, {Quantity: "energy", Source: "a (divided by share)"},
	}
	if diff := cmp.Diff(divided, part.Divided); diff != "" || parent.Divided != nil {
		t.Errorf("what is divided (-want +got):\n%s, of the parent %v", diff, parent.Divided)
	}
	facts := []string{part.Profile, parent.Serial, parent.FirmwareVersion, parent.DriverVersion, parent.CUDAVersion}
	expect.Equal(t, "facts", []string{"1g.10gb", "1650823456700", "96.00.61.00.01", "580.65.06", "13.0"}, facts)
	for device, wants := range map[string][]string{
		"gpu-0": {"in no ResourceSlice", "1650823456700", "96.00.61.00.01", "580.65.06", "13.0"},
		"part":  {"1g.10gb", "power, energy", "a (divided by share): its parent measures it"},
	} {
		_, body := fetch(t, url+"/page/detail?device="+device)
		for _, want := range wants {
			expect.That(t, strings.Contains(body, want), "the details of %s do not have %q:\n%s", device, want, body)
		}
		if n := strings.Count(body, "energy"); device == "part" && n != 1 {
			t.Errorf("why the energy is absent is said %d times:\n%s", n, body)
		}
	}
}
