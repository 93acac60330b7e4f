package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/bus"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a source that reads hardware with these addresses.
type fake struct {
	pci  []string
	err  error
	asks int // for all values
}

func (f *fake) ReadAll() { f.asks++ }

func (*fake) Name() string { return "fake" }

func (f *fake) Sample(context.Context) ([]driver.Sample, error) {
	var samples []driver.Sample
	for _, address := range f.pci {
		samples = append(samples, driver.Sample{Hardware: driver.Hardware{PCI: address}})
	}
	return samples, f.err
}

// machine has two GPUs, one that a guest has, a virtual function, a bridge of the same vendor, and
// another vendor's graphics.
const machine = `
bus/pci/devices/0000:01:00.0/vendor: 0x10de
bus/pci/devices/0000:01:00.0/class: 0x030200
bus/pci/devices/0000:01:00.0/driver -> ../../drivers/nvidia
bus/pci/devices/0000:02:00.0/vendor: 0x10de
bus/pci/devices/0000:02:00.0/class: 0x030000
bus/pci/devices/0000:03:00.0/vendor: 0x10de
bus/pci/devices/0000:03:00.0/class: 0x030200
bus/pci/devices/0000:03:00.0/driver -> ../../drivers/vfio-pci
bus/pci/devices/0000:04:00.4/vendor: 0x10de
bus/pci/devices/0000:04:00.4/class: 0x030200
bus/pci/devices/0000:04:00.4/physfn -> ../0000:04:00.0
bus/pci/devices/0000:05:00.0/vendor: 0x10de
bus/pci/devices/0000:05:00.0/class: 0x068000
bus/pci/devices/0000:06:00.0/vendor: 0x1a03
bus/pci/devices/0000:06:00.0/class: 0x030000
`

// A request to read everything reaches the source.
func TestReadAll(t *testing.T) {
	f := &fake{}
	bus.New(f, bus.Hardware{}, driver.Host{Sysfs: t.TempDir()}, time.Now).ReadAll()
	expect.That(t, f.asks == 1, "%d requests reach the source", f.asks)
}

// Hardware on the bus or in the inventory that is not read is an error with the cause. Without such
// hardware there is no error.
func TestNeverSilent(t *testing.T) {
	absent := fmt.Errorf("%w: open libfake.so: no such file", driver.ErrAbsent)
	failed := errors.New("failed")
	root, empty := t.TempDir(), t.TempDir()
	drivertest.WriteTree(t, root, machine)
	both := []string{"0000:01:00.0", "0000:02:00.0"}
	for name, tc := range map[string]struct {
		source *fake
		root   string
		listed int
		want   []string // in the error; nil: none
	}{
		"all is read":                     {&fake{pci: both}, root, 2, nil},
		"nothing there":                   {&fake{err: absent}, empty, 0, nil},
		"no sysfs":                        {&fake{err: absent}, empty + "/none", 0, nil},
		"another failure":                 {&fake{err: failed}, root, 0, []string{"failed"}},
		"the library is missing":          {&fake{err: absent}, root, 0, append(both, "fake", "open libfake.so")},
		"in slices alone":                 {&fake{err: absent}, empty, 8, []string{"8 devices", "libfake.so"}},
		"one is not read":                 {&fake{pci: both[:1]}, root, 2, both[1:]},
		"in slices, and the library here": {&fake{}, empty, 8, nil},
	} {
		listed := func(vendor string) int { return map[string]int{"nvidia": tc.listed}[vendor] }
		s := bus.New(tc.source, bus.Hardware{Vendor: "nvidia", ID: "10de", Classes: []string{"03"}},
			driver.Host{Sysfs: tc.root, CountListed: listed}, time.Now)
		samples, err := s.Sample(t.Context())
		expect.That(t, (err != nil) == (tc.want != nil) && len(samples) == len(tc.source.pci),
			"%s: error %v, %d samples", name, err, len(samples))
		for _, text := range tc.want {
			if err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%s: error %q does not say %s", name, err, text)
			}
		}
		if name != "one is not read" {
			continue
		}
		if reason := driver.ReasonOf(err); reason != driver.ReasonUnread || strings.Contains(err.Error(), both[0]) {
			t.Errorf("%s: error %v, reason %s", name, err, reason)
		}
	}
}

// Hardware that comes to the bus is seen.
func TestHotplug(t *testing.T) {
	root, now := t.TempDir(), time.Unix(1_800_000_000, 0)
	hardware := bus.Hardware{ID: "10de", Classes: []string{"12", "03"}}
	s := bus.New(&fake{}, hardware, driver.Host{Sysfs: root}, func() time.Time { return now })
	must.Get(s.Sample(t.Context()))(t)
	drivertest.WriteTree(t, root, machine)
	now = now.Add(10 * time.Second)
	_, err := s.Sample(t.Context())
	expect.That(t, err != nil, "the new devices are not missed")
}

// A source that this build lacks fails with a clear error if its hardware is on the bus or in the
// inventory.
func TestNotBuilt(t *testing.T) {
	notBuilt := fmt.Errorf("%w: built without cgo", driver.ErrNotBuilt)
	nvidia := bus.Hardware{Vendor: "nvidia", ID: "10de", Classes: []string{"03"}}
	open := bus.Expect("far", nvidia, func(driver.Host) (driver.Source, error) { return nil, notBuilt })
	empty, full := t.TempDir(), t.TempDir()
	drivertest.WriteTree(t, full, machine)
	listed := func(vendor string) int { return len(vendor) }
	for name, tc := range map[string]struct {
		host driver.Host
		want string // in the error; "" for none
	}{
		"nothing":    {driver.Host{Sysfs: empty}, ""},
		"on the bus": {driver.Host{Sysfs: full}, "on the PCI bus: not in this build: built without cgo"},
		"in the inventory": {
			driver.Host{Sysfs: empty, CountListed: listed}, "inventory: not in this build: built without cgo",
		},
	} {
		s, err := open(tc.host)
		must.That(t, s != nil && s.Name() == "far" && errors.Is(err, driver.ErrNotBuilt), "%s: %v, %v", name, s, err)
		samples, err := s.Sample(t.Context())
		expect.That(t, len(samples) == 0 && (err == nil) == (tc.want == "") && strings.Contains(fmt.Sprint(err), tc.want),
			"%s: %d samples, error %v, want %q", name, len(samples), err, tc.want)
		if err != nil && driver.ReasonOf(err) != driver.ReasonUnread {
			t.Errorf("%s: reason %s", name, driver.ReasonOf(err))
		}
	}
}

func TestExpect(t *testing.T) {
	broken := errors.New("broken")
	open := bus.Expect("fake", bus.Hardware{}, func(driver.Host) (driver.Source, error) { return nil, broken })
	if s, err := open(driver.Host{}); s != nil || !errors.Is(err, broken) {
		t.Errorf("%v, %v", s, err)
	}
	open = bus.Expect("fake", bus.Hardware{}, func(driver.Host) (driver.Source, error) { return &fake{}, nil })
	if s, err := open(driver.Host{}); err != nil || s.Name() != "fake" {
		t.Errorf("%v, %v", s, err)
	}
}
