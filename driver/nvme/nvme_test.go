package nvme

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The controllers of testdata/server.tree.
const (
	drive     = "0000:3b:00.0" // one namespace
	firstPort = "0000:5e:00.0" // paths to two namespaces
	otherPort = "0000:5f:00.0"
	function  = "0000:5e:00.1" // no namespace

	driveFolder = "devices/pci0000:3a/" + drive + "/nvme/nvme0/"
	portFolder  = "devices/pci0000:5d/" + firstPort + "/nvme/nvme1/"
)

// machine is a source over a tree of its own, and its clock.
type machine struct {
	*drivertest.Machine
	busy   int // milliseconds that the drive was busy
	source *Source
}

func server(tb testing.TB) string {
	return drivertest.TestData(tb, "server.tree")
}

func newMachine(tb testing.TB, trees ...string) *machine {
	m := &machine{Machine: drivertest.NewMachine(tb, trees...)}
	m.restart()
	return m
}

// restart makes a new source.
func (m *machine) restart() {
	m.source = New(m.Root)
	m.source.now = m.Now
}

// later advances the time. The drive is busy for a quarter of it, and the second namespace of the
// other one for half, unless a test has removed or broken them.
func (m *machine) later(d time.Duration) {
	m.Clock = m.Clock.Add(d)
	m.busy += int(d.Milliseconds()) / 4
	m.replace(driveFolder+"nvme0n1/stat",
		fmt.Sprintf("10 1 %d 30 40 2 6000 70 3 %d 80 0 0 0 0", 2000+m.busy, 50000+m.busy))
	m.replace(portFolder+"nvme1c1n2/stat", fmt.Sprintf("1 0 300 1 1 0 400 1 2 %d 1", 3000+2*m.busy))
}

func (m *machine) replace(path, content string) {
	old, err := os.ReadFile(filepath.Join(m.Root, path))
	if _, broken := parseStat(string(old)); err == nil && broken == nil {
		m.Write(path + ": " + content + "\n")
	}
}

// sample returns the samples by PCI address.
func (m *machine) sample() map[string]driver.Sample {
	samples := must.Get(m.source.Sample(m.Context()))(m)
	named := map[string]driver.Sample{}
	for _, s := range samples {
		named[s.Hardware.PCI] = s
	}
	return named
}

// A serial number of several controllers is not an identity. Drives behind a network are not read.
func TestHardware(t *testing.T) {
	hardware := map[string]driver.Hardware{}
	for address, s := range newMachine(t, server(t)).sample() {
		hardware[address] = s.Hardware
	}
	want := map[string]driver.Hardware{
		drive:     {PCI: drive, UUID: "S1", Serial: "S1", Model: "EXAMPLE DRIVE 1920", NUMANode: "1"},
		firstPort: {PCI: firstPort, Serial: "S2"},
		otherPort: {PCI: otherPort, Serial: "S2"},
		function:  {PCI: function, UUID: "S3", Serial: "S3", Kind: driver.KindPartition, Parent: firstPort},
	}
	expect.Equal(t, "hardware", want, hardware)
}

// wholeServer has the server's readings after a second.
func wholeServer() map[string]map[string]float64 {
	return map[string]map[string]float64{
		drive: {
			"io_bytes storage transmit": 2250 * 512, "io_bytes storage receive": 6000 * 512, "requests_in_flight": 3,
			"utilization": 0.25, "active_seconds": 50.25, "temperature Composite": 41.85, "temperature Sensor 1": 47.85,
			"capacity storage": 3750748848 * 512, "storage_used": 1000 * 4096, "health healthy": 1,
		},
		firstPort: { // the busier namespace counts, and the sum of the bytes
			"io_bytes storage transmit": 400 * 512, "io_bytes storage receive": 600 * 512, "requests_in_flight": 3,
			"utilization": 0.5, "temperature temp1": 36, "capacity storage": 3000 * 512, "health unhealthy": 1,
		},
		otherPort: {
			"io_bytes storage transmit": 0, "io_bytes storage receive": 0, "requests_in_flight": 0, "utilization": 0,
			"active_seconds": 0,
		},
		function: {},
	}
}

func TestValues(t *testing.T) {
	m := newMachine(t, server(t))
	_, ok := drivertest.Values(m.sample()[drive])["utilization"]
	expect.That(t, !ok, "a utilization after one sample")
	m.later(time.Second)
	got := m.sample()
	for address, want := range wholeServer() {
		expect.Equal(t, address, want, drivertest.Values(got[address]), cmpopts.EquateApprox(0, 1e-9))
	}
}

// A drive that another one replaces under the same name starts again; a namespace that comes
// appears within 10 s.
func TestReplaced(t *testing.T) {
	m := newMachine(t, server(t))
	m.sample()
	m.Write("class/nvme/nvme0 -> ../../devices/pci0000:5d/0000:5f:00.0/nvme/nvme2\n")
	m.later(time.Second)
	got := m.sample()
	_, ok := got[drive]
	expect.That(t, !ok && got[otherPort].Hardware.Serial == "S2", "%+v", got)
	m.Write("devices/pci0000:5d/0000:5e:00.1/nvme/nvme3/nvme3n1/stat: 1 1 8 1 1 1 16 1 1 1 1\n")
	m.later(slowEvery)
	if got := drivertest.Values(m.sample()[function]); got["io_bytes storage transmit"] != 8*512 {
		t.Errorf("a namespace that came: %v", got)
	}
}

// Of many controllers a sample reads the statistics of all, and the temperatures of a few.
func TestInTurns(t *testing.T) {
	const drives = 2*slowAtOnce + 1
	m := newMachine(t, tree(drives))
	for tick := range 4 {
		warm := 0
		for address, s := range m.sample() {
			for _, r := range s.Readings {
				switch {
				case r.Quantity == driver.IOBytes && !r.At.Equal(m.Clock):
					t.Fatalf("tick %d: bytes of %s are of %v", tick, address, r.At)
				case r.Quantity == driver.Temperature && r.At.Equal(m.Clock):
					warm++
				}
			}
		}
		if want := min(slowAtOnce, max(0, drives-tick*slowAtOnce)); warm != want {
			t.Errorf("tick %d: %d temperatures, want %d", tick, warm, want)
		}
		m.Clock = m.Clock.Add(time.Second)
	}
}

// tree is that of drives with one namespace.
func tree(n int) string {
	var text strings.Builder
	for i := range n {
		pci := fmt.Sprintf("devices/pci0000:10/0000:10:%02x.%d", i/8, i%8)
		folder := fmt.Sprintf("%s/nvme/nvme%d", pci, i)
		fmt.Fprintf(&text, "class/nvme/nvme%d -> ../../%s\n%s/device -> ../../../%s\n", i, folder, folder, filepath.Base(pci))
		fmt.Fprintf(&text, "%s/subsystem -> ../../../bus/pci\n%s/serial: S%d\n", pci, folder, i)
		fmt.Fprintf(&text, "%s/hwmon%d/temp1_input: 40000\n", folder, i)
		fmt.Fprintf(&text, "%s/nvme%dn1/stat: 10 1 2000 30 40 2 6000 70 3 50000 80 0 0 0 0 0 0\n", folder, i)
	}
	return text.String()
}

func TestSource(t *testing.T) {
	fault := func(name, tree string, hits ...driver.Quantity) drivertest.FileFault[*machine] {
		return drivertest.FileFault[*machine]{
			Name: name, Break: func(m *machine) { m.Write(tree); m.later(slowEvery) },
			Hits: func(s driver.Sample, r driver.Reading) bool {
				return s.Hardware.PCI == drive && slices.Contains(hits, r.Quantity) && r.Labels[0] != "Sensor 1"
			},
		}
	}
	all := []driver.Quantity{driver.IOBytes, driver.RequestsInFlight, driver.Utilization, driver.ActiveSeconds}
	drivertest.Files[*machine]{
		Fills: Fills(),
		New: func(tb testing.TB) *machine {
			m := newMachine(tb, server(tb))
			m.sample() // the utilization is of the second one
			m.later(time.Second)
			return m
		},
		Absent:  func(tb testing.TB) *machine { return newMachine(tb) },
		Source:  func(m *machine) driver.Source { return m.source },
		Advance: func(m *machine) { m.later(slowEvery) },
		Faults: []drivertest.FileFault[*machine]{
			fault("statistics without numbers", driveFolder+"nvme0n1/stat: a b c d e f g h i j k\n", all...),
			fault("statistics that are cut off", driveFolder+"nvme0n1/stat: 1 2 3\n", all...),
			fault("a temperature without a number", driveFolder+"hwmon2/temp1_input: warm\n", driver.Temperature),
		},
	}.Run(t)
}

// BenchmarkSample reads drives, of a tree on disk, a second a sample; and a machine without any.
func BenchmarkSample(b *testing.B) {
	for _, drives := range []int{32, 0} {
		b.Run(fmt.Sprint(drives), func(b *testing.B) {
			m := newMachine(b, tree(drives))
			b.ReportAllocs()
			for b.Loop() {
				m.Clock = m.Clock.Add(time.Second)
				samples, err := m.source.Sample(b.Context())
				if err != nil || len(samples) != drives {
					b.Fatal(len(samples), err)
				}
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	for _, seed := range []string{"1 2 3 4 5 6 7 8 9 10 11", "1 2 3", "-1 2 3 4 5 6 7 8 9 10 11", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if s, err := parseStat(line); err != nil && s != (stat{}) || err == nil && len(strings.Fields(line)) < 11 {
			t.Errorf("%q is %+v with error %v", line, s, err)
		}
	})
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../README.md", "nvme", Fills()) }
