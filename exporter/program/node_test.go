package program

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// The sources are told when the inventory has devices for guests.
func TestPassthrough(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	o := &options{socket: "none"}
	n, err := newNode(o, exporter.NewSelfMetrics(prometheus.NewRegistry(), "node", log), log)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	for kind, want := range map[driver.Kind]bool{driver.KindDevice: false, driver.KindPassthrough: true} {
		n.listed = driver.Inventory{{Device: "gpu"}: {Hardware: driver.Hardware{Kind: kind}}}
		n.Describe(nil)
		if got := o.passthrough.Load(); got != want {
			t.Errorf("with a device of kind %d: %v", kind, got)
		}
	}
}

// Devices of a local driver are marked when it is gone, and the inventory stays as it is; those that are offered from elsewhere have
// no driver on the node.
func TestWithoutDrivers(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "plugins", "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	n := &node{driver: podresources.NewDrivers(root, func() time.Time { return now })}
	local, remote := driver.ID{Driver: "d", Device: "local"}, driver.ID{Driver: "d", Device: "remote"}
	listed := driver.Inventory{local: {Local: true}, remote: {}}
	n.withoutDrivers(listed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.driver.Watch(ctx) // one look
	now = now.Add(time.Hour)
	got := n.withoutDrivers(listed)
	if !got[local].DriverGone || got[remote].DriverGone || listed[local].DriverGone {
		t.Errorf("got %+v of %+v", got, listed)
	}
}

// What is known of a device stays while it is held, even if nobody lists it for a while; what is listed again is what counts.
func TestWithHeld(t *testing.T) {
	n := &node{}
	held, free := driver.ID{Driver: "d", Device: "held"}, driver.ID{Driver: "d", Device: "free"}
	holders := []podresources.Allocation{{Device: held}, {Device: driver.ID{Driver: "d", Device: "never listed"}}}
	uuid := func(s string) driver.Entry { return driver.Entry{Hardware: driver.Hardware{UUID: s}} }
	full := driver.Inventory{held: uuid("1"), free: uuid("2")}
	for i, step := range []struct {
		holders      []podresources.Allocation
		listed, want driver.Inventory
	}{
		{holders, nil, nil},
		{holders, full, full},
		{holders, nil, driver.Inventory{held: uuid("1")}},
		{holders, driver.Inventory{free: uuid("2")}, full},
		{holders, driver.Inventory{held: uuid("3")}, driver.Inventory{held: uuid("3")}},
		{nil, nil, nil},
		{holders, nil, nil},
	} {
		before := maps.Clone(step.listed)
		if diff := cmp.Diff(step.want, n.withHeld(step.holders, step.listed), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
		if diff := cmp.Diff(before, step.listed); diff != "" {
			t.Errorf("step %d changed what is listed:\n%s", i, diff)
		}
	}
}

// The inventory file is a source like any other: it is up from the first reading on, changed or not.
func TestInventoryFileIsUpAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	log := slog.New(slog.DiscardHandler)
	n, err := newNode(&options{socket: "none", inventoryFile: file}, exporter.NewSelfMetrics(registry, "node", log), log)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	if got, err := testutil.GatherAndCount(registry, "dra_exporter_source_up"); err != nil || got != 1 {
		t.Errorf("%d sources are known (error %v), want that of the inventory file", got, err)
	}
}

// A device of which neither a slice nor a CDI spec tells is known where its name tells.
func TestKnownByName(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	n, err := newNode(&options{socket: "none"}, exporter.NewSelfMetrics(prometheus.NewRegistry(), "node", log), log)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	mig, other := driver.ID{Driver: "gpu.nvidia.com", Device: "gpu-1-mig-3g40gb-9-4"}, driver.ID{Driver: "gpu.nvidia.com", Device: "gpu-1"}
	all := n.withCDI([]podresources.Allocation{{Device: mig}, {Device: other}}, nil, time.Unix(1_700_000_000, 0))
	if len(all) != 1 || all[mig].Placement != "nvidia/1/9/4" {
		t.Errorf("the inventory is %+v", all)
	}
}
