package rdma

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	exclusive = "module/ib_core/parameters/netns_mode: N\n"
	// inPod is the sysfs of the network namespace of process 42, to which mlx5_7 was moved.
	inPod = `
proc/42/root/sys/class/infiniband/mlx5_7 -> ../../devices/pci0000:3a/0000:3b:00.7/infiniband/mlx5_7
proc/42/root/sys/devices/pci0000:3a/0000:3b:00.7/infiniband/mlx5_7/device -> ../../../0000:3b:00.7
proc/42/root/sys/devices/pci0000:3a/0000:3b:00.7/infiniband/mlx5_7/ports/1/state: 4: ACTIVE
proc/42/root/sys/devices/pci0000:3a/0000:3b:00.7/infiniband/mlx5_7/ports/1/counters/port_rcv_data: 250
`
)

// attachment is a device of dranet that pod 42 holds.
func attachment(h driver.Hardware, pids ...int) driver.Attachment {
	return driver.Attachment{Driver: "dra.net", Device: "nic", Hardware: h, PIDs: pids}
}

// In the exclusive mode, a pod's device is read through one of its processes, by name or PCI
// function. Its counters continue when it moves to the host and back.
func TestPods(t *testing.T) {
	for name, h := range map[string]driver.Hardware{"by name": {RDMADev: "mlx5_7"}, "by PCI": {PCI: "0000:3b:00.7"}} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, server(t), exclusive, inPod)
			m.attached = []driver.Attachment{attachment(h, 41, 42)}
			s := m.sample()["nic"]
			got := drivertest.Values(s)
			expect.That(t, s.Driver == "dra.net" && got["io_bytes rdma receive"] == 1000 && got["link_up rdma 1"] == 1,
				"in the pod: %+v", s)
			for _, path := range []string{"class", "devices"} {
				must.Do(t, os.RemoveAll(filepath.Join(m.Root, "proc", "42", "root", "sys", path)))
			}
			if s, ok := m.sample()["nic"]; ok {
				t.Errorf("gone from the pod: %+v", s)
			}
			m.Write(strings.ReplaceAll(inPod, "proc/42/root/sys/", "") +
				"devices/pci0000:3a/0000:3b:00.7/subsystem -> ../../../bus/pci\n" +
				"devices/pci0000:3a/0000:3b:00.7/infiniband/mlx5_7/ports/1/counters/port_rcv_data: 300\n")
			m.Later(time.Second)
			samples := m.sample()
			if got := drivertest.Values(samples["mlx5_7"])["io_bytes rdma receive"]; got != 1200 || len(samples) != 7 {
				t.Errorf("back on the host: %v in %d samples", got, len(samples))
			}
		})
	}
}

// In the shared mode, nothing is read in pods, and neither are devices of the host. A file system
// other than sysfs, or a missing permission, is an error.
func TestNotInPods(t *testing.T) {
	held := attachment(driver.Hardware{RDMADev: "mlx5_7"}, 42)
	for name, tc := range map[string]struct {
		mode string
		a    driver.Attachment
		fake bool
		want error
	}{
		"shared":             {mode: "module/ib_core/parameters/netns_mode: Y\n", a: held, fake: true},
		"unknown mode":       {a: held, fake: true},
		"on the host":        {mode: exclusive, a: attachment(driver.Hardware{RDMADev: "mlx5_0"}, 42), fake: true},
		"on the host by PCI": {mode: exclusive, a: attachment(driver.Hardware{PCI: "0000:3b:00.0"}, 42), fake: true},
		"an interface alone": {mode: exclusive, a: attachment(driver.Hardware{NetDev: "eth1"}, 42), fake: true},
		"another device":     {mode: exclusive, a: attachment(driver.Hardware{RDMADev: "mlx5_9"}, 42)},
		"ended":              {mode: exclusive, a: attachment(driver.Hardware{RDMADev: "mlx5_7"}, 43), fake: true},
		"no sysfs":           {mode: exclusive, a: held, fake: true, want: sysfs.ErrNotSysfs},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, server(t), tc.mode, inPod)
			m.attached = []driver.Attachment{tc.a}
			if tc.fake {
				m.source.isSysfs = sysfs.IsSysfs // the real one, which a folder of a test is not
			}
			samples, err := m.source.Sample(t.Context())
			expect.That(t, errors.Is(err, tc.want) && len(samples) == 6,
				"%d samples, error %v, want %v", len(samples), err, tc.want)
		})
	}
}

// No link of a pod leads out of its root.
func TestPodsLinks(t *testing.T) {
	m := newMachine(t, server(t), exclusive)
	secret := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(secret, "mlx5_7", "ports", "1", "counters"), 0o700))
	m.Write("proc/42/root/sys/class/infiniband -> " + secret + "\n")
	m.attached = []driver.Attachment{attachment(driver.Hardware{RDMADev: "mlx5_7"}, 42)}
	if samples := m.sample(); len(samples) != 6 {
		t.Errorf("read outside of the pod: %+v", samples["nic"])
	}
}

// The sysfs of the machine is one, and a folder of a test is not.
func TestIsSysfs(t *testing.T) {
	for path, want := range map[string]bool{"/sys": true, t.TempDir(): false} {
		dir := must.Get(sysfs.OpenDir(sysfs.WorkingDir, path))(t)
		expect.Is(t, sysfs.IsSysfs(dir), want, "%s", path)
		dir.Close()
	}
}
