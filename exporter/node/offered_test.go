package node

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	devices "github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The kubelet is asked at the start, each minute, and when it has started again; then plugins
// register one by one, and what they offered before stays for a minute. What is no hardware does
// not count, and shares of a device count once. An old kubelet is no error.
func TestOffers(t *testing.T) {
	kubelet, socket := podresourcestest.New(), filepath.Join(t.TempDir(), "k.sock")
	start := func() {
		t.Helper()
		must.Do(t, kubelet.Start(socket))
	}
	start()
	t.Cleanup(kubelet.Stop)
	client := must.Get(podresources.NewClient(socket, podresources.Bounds{}))(t)
	t.Cleanup(func() {
		expect.OK(t, client.Close())
	})
	metrics := &recorded{rejected: map[string]int{}}
	o := offers{
		client: client, metrics: metrics,
		reader: driver.NewReader[map[driver.ID]devices.PluginDevice]("find offered devices", nil),
	}
	now := time.Unix(1_700_000_000, 0)
	check := func(after time.Duration, want ...string) {
		t.Helper()
		now = now.Add(after)
		o.update(t.Context(), now)
		var got []string
		for id := range o.current() {
			got = append(got, id.Device)
		}
		slices.Sort(got)
		expect.Equal(t, "", want, got)
	}
	check(0)
	expect.That(t, len(metrics.observed) == 0 && len(metrics.rejected) == 0,
		"an old kubelet is reported: %v, %v", metrics.observed, metrics.rejected)
	kubelet.Offer("nvidia.com/gpu", "GPU-1", "GPU-2::0", "GPU-2::1")
	kubelet.Offer("devices.kubevirt.io/kvm", "kvm0", "kvm1")
	check(offeredEvery / 2)
	check(offeredEvery/2, "GPU-1", "GPU-2::0")
	kubelet.Offer("nvidia.com/gpu", "GPU-1")
	check(offeredEvery/2, "GPU-1", "GPU-2::0")
	check(offeredEvery/2, "GPU-1")

	kubelet.Stop()
	kubelet.Offer("nvidia.com/gpu", "GPU-3")
	check(offeredEvery, "GPU-1") // it is away
	start()
	for range 100 { // the client connects again
		if _, _, err := client.Allocatable(t.Context()); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	check(offeredCheck, "GPU-1", "GPU-3")
	check(offeredEvery, "GPU-3")
	for _, said := range metrics.observed {
		t.Errorf("reported: %s", said)
	}
}

// A device that is only offered is one of the node's devices, in no slice, with the identity of the
// DRA device of the same hardware if there is one. It is gone when it is not offered any more.
func TestOfferedDevices(t *testing.T) {
	offered := map[driver.ID]devices.PluginDevice{}
	for _, name := range []string{"GPU-1", "GPU-2::0"} {
		offered[driver.ID{Driver: "nvidia.com/gpu", Device: name}] = devices.NewPluginDevice("nvidia.com/gpu", name, "")
	}
	listed := driver.ID{Driver: "gpu.nvidia.com", Pool: "n", Device: "gpu-0"}
	inventory := driver.Inventory{listed: {Hardware: driver.Hardware{UUID: "GPU-1"}, Local: true}}
	p, now := pluginDevices{}, time.Unix(1_700_000_000, 0)
	ids := func(offered map[driver.ID]devices.PluginDevice) []driver.ID {
		t.Helper()
		_, all := p.identify(nil, offered, inventory, now)
		if entry := all[listed]; !entry.Local {
			t.Errorf("the listed device is %+v", entry)
		}
		return slices.SortedFunc(maps.Keys(all), driver.ID.Compare)
	}
	plugged := driver.ID{Driver: "nvidia.com/gpu", Device: "GPU-2"}
	expect.Equal(t, "", []driver.ID{listed, plugged}, ids(offered))
	if _, all := p.identify(nil, offered, inventory, now); !all[plugged].Unlisted || all[plugged].UUID != "GPU-2" {
		t.Errorf("the device that is only offered is %+v", all[plugged])
	}
	expect.Equal(t, "not offered any more", []driver.ID{listed}, ids(nil))
}
