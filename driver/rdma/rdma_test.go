package rdma

import (
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/rdma/rdmatest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is the tree of a server with devices of all kinds.
func server(tb testing.TB) string {
	return drivertest.TestData(tb, "server.tree")
}

// machine is a source over a tree of its own, and its clock.
type machine struct {
	*drivertest.Machine
	attached []driver.Attachment
	source   *Source
}

func newMachine(tb testing.TB, trees ...string) *machine {
	m := &machine{Machine: drivertest.NewMachine(tb, trees...)}
	m.source = New(driver.Host{
		Sysfs: m.Root, Procfs: filepath.Join(m.Root, "proc"),
		Attachments: func() []driver.Attachment { return m.attached },
	})
	m.source.now = m.Now
	m.source.isSysfs = func(sysfs.Dir) bool { return true }
	return m
}

// sample returns the samples by the devices' names.
func (m *machine) sample() map[string]driver.Sample {
	samples := must.Get(m.source.Sample(m.Context()))(m)
	named := map[string]driver.Sample{}
	for _, s := range samples {
		named[s.Hardware.RDMADev+s.Device] = s
	}
	return named
}

func TestHardware(t *testing.T) {
	hardware := map[string]driver.Hardware{}
	for name, s := range newMachine(t, server(t)).sample() {
		hardware[name] = s.Hardware
	}
	want := map[string]driver.Hardware{
		"mlx5_0": {RDMADev: "mlx5_0", PCI: "0000:3b:00.0", NUMANode: "1"},
		"mlx5_1": {
			RDMADev: "mlx5_1", PCI: "0000:3c:00.2", NetDev: "ens1f0v0", Kind: driver.KindPartition, Parent: "0000:3c:00.0",
		},
		"mlx4_0": {RDMADev: "mlx4_0", PCI: "0000:5e:00.0"},
		"mlx5_4": {
			RDMADev: "mlx5_4", NetDev: "en3f0pf0sf88", Kind: driver.KindPartition, Parent: "0000:3b:00.0", NUMANode: "1",
		},
		"rxe0":  {RDMADev: "rxe0", NetDev: "dummy0"},
		"efa_0": {RDMADev: "efa_0", PCI: "0000:00:06.0"},
	}
	expect.Equal(t, "hardware", want, hardware)
}

// Counts of ports in words of four octets become bytes. Ports are summed. A port that is down has
// no rate. EFA counts octets itself.
func TestValues(t *testing.T) {
	samples := newMachine(t, server(t)).sample()
	for name, want := range map[string]map[string]float64{
		"mlx5_0": {
			"io_bytes rdma receive": 400_000, "io_bytes rdma transmit": 800_000, "link_up rdma 1": 1, "capacity speed": 50e9,
			"errors link_down": 102, "errors port symbol_error": 100, "rdma_events port_xmit_wait": 112,
			"rdma_events out_of_sequence": 1001, "rdma_events np_cnp_sent": 1007, "rdma_events rp_cnp_handled": 1009,
			"rdma_events packet_seq_err": 1004, "rdma_events local_ack_timeout_err": 1006,
		},
		"mlx5_1": {"link_up rdma 1": 0, "io_bytes rdma receive": 800_000},
		"mlx4_0": {
			"io_bytes rdma receive": 2_800_000, "link_up rdma 1": 1, "link_up rdma 2": 0, "capacity speed": 7e9,
			"errors link_down": 704,
		},
		"rxe0": {"capacity speed": 312_500_000, "rdma_events out_of_seq_request": 6001},
		"efa_0": {
			"io_bytes rdma receive": 7000, "io_bytes rdma transmit": 7001, "rdma_events rx_drops": 7002, "link_up rdma 1": 1,
			"capacity speed": 12.5e9, "rdma_packets receive": 7003, "rdma_packets transmit": 7004,
			"rdma_events retrans_timeout_events": 7019, "rdma_events impaired_remote_conn_events": 7020,
			"rdma_events unresponsive_remote_events": 7021, "rdma_operations rdma_read_wrs": 7009,
		},
	} {
		got := drivertest.Values(samples[name])
		for key, v := range want {
			have, ok := got[key]
			expect.That(t, ok && have == v, "%s: %s is %v (%v), want %v", name, key, have, ok, v)
		}
	}
	for name, want := range map[string]int{
		"mlx5_0": 2 + 10 + 20 + 2, "mlx5_1": 2 + 10 + 20 + 1, "efa_0": 22 + 2, "rxe0": 11 + 2,
	} {
		if got := drivertest.Values(samples[name]); len(got) != want {
			t.Errorf("%s has %d readings, want %d: %v", name, len(got), want, got)
		}
	}
}

// Of many devices a sample reads the traffic of all, and all of a few: those that were not read for
// the longest time. Each reading has the time at which it was read.
func TestInTurns(t *testing.T) {
	const devices = 3*slowAtOnce + 1
	m := newMachine(t)
	rdmatest.WriteCards(t, m.Root, devices)
	read := map[string]time.Time{}
	for tick := range 8 {
		slow := 0
		for name, s := range m.sample() {
			for _, r := range s.Readings {
				switch {
				case r.Quantity == driver.IOBytes && !r.At.Equal(m.Clock):
					t.Fatalf("tick %d: traffic of %s is of %v", tick, name, r.At)
				case r.Quantity == driver.LinkUp && r.At.Equal(m.Clock):
					slow++
					read[name] = r.At
				}
			}
		}
		expect.That(t, (tick >= 4 || slow == min(slowAtOnce, devices-tick*slowAtOnce)) && (tick < 4 || slow == 0),
			"tick %d: %d devices were read wholly", tick, slow)
		m.Later(time.Second)
	}
	expect.That(t, len(read) == devices, "%d devices were read wholly, want %d", len(read), devices)
}

func TestSource(t *testing.T) {
	const port = "devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/"
	fault := func(name, tree string, silent bool, hits func(driver.Reading) bool) drivertest.FileFault[*machine] {
		return drivertest.FileFault[*machine]{
			Name: name, Silent: silent, Break: func(m *machine) { m.Write(tree); m.Later(slowEvery) },
			Hits: func(s driver.Sample, r driver.Reading) bool { return s.Hardware.RDMADev == "mlx5_0" && hits(r) },
		}
	}
	ofState := func(r driver.Reading) bool { return r.Quantity == driver.LinkUp || r.Quantity == driver.Capacity }
	drivertest.Files[*machine]{
		Fills:   Fills(),
		New:     func(tb testing.TB) *machine { return newMachine(tb, server(tb)) },
		Absent:  func(tb testing.TB) *machine { return newMachine(tb) },
		Source:  func(m *machine) driver.Source { return m.source },
		Advance: func(m *machine) { m.Later(slowEvery) },
		Faults: []drivertest.FileFault[*machine]{
			fault("a counter without a number", port+"counters/port_rcv_data: many\n", false,
				func(r driver.Reading) bool { return r.Labels == driver.Labels{"rdma", "receive"} }),
			fault("a state without a number", port+"state: ACTIVE\n", false, ofState),
			fault("a state of the future", port+"state: 9: UNKNOWN\n", true, ofState),
			fault("a rate without a number", port+"rate: fast\n", false,
				func(r driver.Reading) bool { return r.Quantity == driver.Capacity }),
		},
	}.Run(t)
}

func FuzzParsers(f *testing.F) {
	for _, seed := range []string{
		"4: ACTIVE", "1: DOWN", "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)", "17",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		if up, err := parseState(value); up != 0 && err != nil {
			t.Errorf("state %q is up with error %v", value, err)
		}
		if rate, err := parseRate(value); !(rate >= 0 && rate < 1e15) || err != nil && rate != 0 {
			t.Errorf("rate %q is %v with error %v", value, rate, err)
		}
	})
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../README.md", "rdma", Fills()) }

// BenchmarkSample reads 64 cards, of a tree on disk, a second a sample; and a machine without RDMA.
func BenchmarkSample(b *testing.B) {
	for name, devices := range map[string]int{"64": 64, "none": 0} {
		b.Run(name, func(b *testing.B) {
			m := newMachine(b)
			rdmatest.WriteCards(b, m.Root, devices)
			b.ReportAllocs()
			for b.Loop() {
				m.Later(time.Second)
				samples, err := m.source.Sample(b.Context())
				if err != nil || len(samples) != devices {
					b.Fatal(len(samples), err)
				}
			}
		})
	}
}
