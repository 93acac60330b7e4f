package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// describeFor calls Describe once a second for a while, and returns the duration of the longest
// call.
func describeFor(n *Node, d time.Duration) time.Duration {
	var longest time.Duration
	for begun := time.Now(); time.Since(begun) < d; time.Sleep(time.Second) {
		call := time.Now()
		n.Describe()
		longest = max(longest, time.Since(call))
	}
	return longest
}

// A cgroup file system that hangs delays no tick, and delays the requests to the kubelet only once.
// It is reported once.
func TestHungCgroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &recorded{rejected: map[string]int{}}
		n := newTestNode(t, Config{Metrics: m})
		release := make(chan struct{})
		n.podState = func(string) podresources.CgroupState { <-release; return podresources.CgroupGone }
		begun := time.Now()
		if states := n.asker.Cgroups([]string{"uid"}); len(states) > 0 || time.Since(begun) > driver.ReadWait {
			t.Errorf("the pods are %v after %v", states, time.Since(begun))
		}
		for range 10 {
			begun := time.Now()
			if states := n.asker.Cgroups([]string{"uid"}); len(states) > 0 || time.Since(begun) > 0 {
				t.Errorf("the pods are %v after %v", states, time.Since(begun))
			}
			longest := describeFor(n, time.Second)
			expect.That(t, longest <= 0, "a tick was delayed by %v", longest)
		}
		expect.That(t, slices.Equal(m.observed, []string{"cgroups: read pods' cgroups: no answer in time"}),
			"observed %q, want once that it hangs", m.observed)
		close(release)
		synctest.Wait()
		if state := n.asker.Cgroups([]string{"uid"})["uid"]; state != podresources.CgroupGone {
			t.Errorf("the pod is %v when it can be read", state)
		}
	})
}

// An inventory file that hangs delays no tick by more than driver.ReadWait. The known inventory is
// kept. The hang is reported once, and the input is up again when the file can be read.
func TestHungInventoryFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	const one = "{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: " +
		"{driver: d.example.com, nodeName: node1, pool: {name: p, resourceSliceCount: 1}, devices: [{name: gpu-0}]}}\n"
	must.Do(t, os.WriteFile(file, []byte(one), 0o600))
	synctest.Test(t, func(t *testing.T) {
		m := &recorded{rejected: map[string]int{}}
		n := must.Get(New(Config{
			Name: "node1", InventoryFile: file, PodResourcesSocket: "none", Metrics: m, Log: slog.New(slog.DiscardHandler),
		}))(t)
		defer n.Close()
		release := make(chan struct{})
		n.reader.Start(t.Context(), func(context.Context) (bool, error) { <-release; return false, nil })
		longest := describeFor(n, 10*time.Second)
		expect.That(t, longest <= driver.ReadWait, "a tick was delayed by %v", longest)
		_, all := n.Describe()
		expect.That(t, len(all) == 1, "the inventory is %v", all)
		close(release)
		synctest.Wait()
		n.Describe()
		want := []string{"slices: <nil>", "slices: read inventory file: no answer in time", "slices: <nil>"}
		expect.That(t, slices.Equal(m.observed, want), "observed %q, want %q", m.observed, want)
	})
}

// While sysfs does not answer in time, a device plugin's device is identified by its name.
func TestHungSysfs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestNode(t, Config{Sysfs: t.TempDir()})
		id := driver.ID{Driver: "nvidia.com/gpu", Device: "GPU-1"}
		release := make(chan struct{})
		n.plugin.reader.Start(t.Context(), func(context.Context) (d inventory.PluginDevice, err error) {
			<-release
			return d, nil
		})
		if d := n.plugin.device(id); d.Hardware.UUID != "GPU-1" || len(n.plugin.known) != 0 {
			t.Errorf("while it hangs: %+v", d)
		}
		close(release)
		synctest.Wait()
		if d := n.plugin.device(id); d.Hardware.UUID != "GPU-1" || len(n.plugin.known) != 1 {
			t.Errorf("after it: %+v", d)
		}
	})
}
