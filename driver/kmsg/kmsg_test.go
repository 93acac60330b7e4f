package kmsg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine has one GPU, and a file for the kernel log.
type machine struct {
	testing.TB
	*Source
	root     string
	clock    time.Time
	log      time.Duration // of the log's own clock
	sequence int
}

func newMachine(tb testing.TB) *machine {
	m := &machine{TB: tb, root: tb.TempDir(), clock: time.Unix(1_800_000_000, 0), log: 1000 * time.Second, sequence: 5000}
	drivertest.WriteTree(tb, m.root, `
sys/bus/pci/devices/0000:65:00.0/vendor: 0x10de
sys/bus/pci/devices/0000:65:00.0/class: 0x030200
proc/driver/nvidia/gpus/0000:65:00.0/information: GPU UUID: 	 GPU-65
kmsg: 6,5000,0,-;Linux
`)
	m.Source = New(driver.Host{
		Kmsg: filepath.Join(m.root, "kmsg"), Sysfs: filepath.Join(m.root, "sys"), Procfs: filepath.Join(m.root, "proc"),
	})
	m.now, m.uptime = func() time.Time { return m.clock }, func() time.Duration { return m.log }
	tb.Cleanup(m.close)
	return m
}

func (m *machine) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file != nil {
		_ = m.file.Close()
		m.file = nil
	}
}

// pass lets time pass.
func (m *machine) pass(d time.Duration) { m.clock, m.log = m.clock.Add(d), m.log+d }

// record returns the next record of the log.
func (m *machine) record(text string) string {
	m.sequence++
	return fmt.Sprintf("4,%d,%d,-;%s\n", m.sequence, m.log.Microseconds(), text)
}

// write writes the kernel's next record.
func (m *machine) write(text string) { m.writeRaw(m.record(text)) }

func (m *machine) writeRaw(text string) {
	f, err := os.OpenFile(m.path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	must.Do(m, err)
}

// sample returns the samples, which have no error.
func (m *machine) sample() []driver.Sample {
	samples := must.Get(m.Sample(m.Context()))(m)
	return samples
}

const (
	fault   = "NVRM: Xid (PCI:0000:65:00): 31, pid=4242, name=python, Ch 00000008, intr 00000000. MMU Fault"
	nowhere = "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."
)

func xidLabels(code string) driver.Labels { return driver.Labels{"xid", code} }

// Earlier records of the log do not count. An error counts from just before it on, with its process
// and its time by the clock of the log.
func TestXIDs(t *testing.T) {
	m := newMachine(t)
	m.podOf = func(pid int) string { return fmt.Sprint("pod-", pid) }
	m.write(fault)
	got := m.sample()
	must.That(t, len(got) == 0, "errors of before: %+v", got)
	m.pass(400 * time.Millisecond)
	m.write(fault)
	at := m.clock
	m.pass(300 * time.Millisecond)
	m.write("usb 1-1: new device\n SUBSYSTEM=usb")
	m.write(nowhere)
	lost := m.clock
	m.pass(300 * time.Millisecond)
	want := []driver.Sample{{
		Hardware: driver.Hardware{PCI: "0000:65:00.0", Vendor: "nvidia"}, FromLog: true,
		Readings: []driver.Reading{
			{Quantity: driver.Errors, Labels: xidLabels("31"), Value: 1, At: m.clock, Since: at.Add(-time.Microsecond)},
			{Quantity: driver.Errors, Labels: xidLabels("79"), Value: 1, At: m.clock, Since: lost.Add(-time.Microsecond)},
		},
		Events: []driver.Event{
			{Quantity: driver.Errors, Labels: xidLabels("31"), At: at, PID: 4242, PodUID: "pod-4242"},
			{Quantity: driver.Errors, Labels: xidLabels("79"), At: lost},
		},
	}}
	diff := cmp.Diff(want, m.sample())
	must.That(t, diff == "", "samples (-want +got):\n%s", diff)
	m.pass(time.Second)
	want[0].Events = nil
	for i := range want[0].Readings {
		want[0].Readings[i].At = m.clock
	}
	expect.Equal(t, "a second later", want, m.sample())
}

// An error of a MIG device is that device's, by the UUID of its GPU; the GPU's where that is not
// known.
func TestMIG(t *testing.T) {
	m := newMachine(t)
	m.sample()
	m.write("NVRM: Xid (PCI:0000:65:00 GPU-I:02 GPU-CI:01): 43, pid=1, name=a, Ch 00000008")
	m.write("NVRM: Xid (PCI:0000:66:00 GPU-I:02): 43, pid=1, name=a, Ch 00000008")
	got := m.sample()
	want := []driver.Hardware{
		{Parent: "GPU-65", Instance: "2/1", Vendor: "nvidia"}, {PCI: "0000:66:00.0", Vendor: "nvidia"},
	}
	expect.That(t, len(got) == 2 && cmp.Equal(want, []driver.Hardware{got[0].Hardware, got[1].Hardware}),
		"samples %+v, want of %+v", got, want)
}

// The log's clock drifts: an error with an impossible time gets the time of the read.
func TestDrift(t *testing.T) {
	for _, drift := range []time.Duration{-90 * time.Second, 90 * time.Second} {
		m := newMachine(t)
		m.sample()
		m.clock = m.clock.Add(time.Second)
		m.write(fault)
		m.log += drift
		m.pass(400 * time.Millisecond)
		if at := m.sample()[0].Events[0].At; !at.Equal(m.clock) {
			t.Errorf("drift %v: the error is at %v, read at %v", drift, at, m.clock)
		}
	}
}

// Errors of the same moment have times of their own.
func TestBurst(t *testing.T) {
	m := newMachine(t)
	m.sample()
	m.pass(time.Second)
	for range 5 {
		m.write(fault)
	}
	events := m.sample()[0].Events
	for i := 1; i < len(events); i++ {
		expect.That(t, events[i].At.After(events[i-1].At),
			"event %d at %v, the one before at %v", i, events[i].At, events[i-1].At)
	}
	if last := events[len(events)-1].At; len(events) != 5 || last.After(m.clock) {
		t.Errorf("%d events, the last at %v, now %v", len(events), last, m.clock)
	}
}

// Records written while no process reads the log are counted by the next process, in that time.
// Counted records are not counted again, nor are those from before the first process.
func TestResume(t *testing.T) {
	for name, read := range map[string]bool{"a record was read": true, "none was": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.write(fault)
			m.sample()
			m.pass(time.Second)
			if read {
				m.write(fault)
				m.sample()
			}
			m.close()
			position, left := m.Position(), m.clock
			m.pass(time.Second)
			m.write(nowhere)
			at := m.clock
			m.pass(time.Second)
			next := newMachine(t)
			next.path, next.clock, next.log, next.sequence = m.path, m.clock, m.log, m.sequence
			next.Resume(position, left)
			got := next.sample()
			must.That(t, len(got) == 1 && len(got[0].Readings) == 1 && len(got[0].Events) == 1, "the samples are %+v", got)
			r, e := got[0].Readings[0], got[0].Events[0]
			expect.That(t, r.Labels == xidLabels("79") && r.Value == 1 && r.Since.After(left) && e.At.Equal(at),
				"read %+v with %+v, want one XID 79 at %v", r, e, at)
			next.write(fault)
			if got := next.sample()[0].Readings; len(got) != 2 || got[1].Value != 1 {
				t.Errorf("then read %+v", got)
			}
		})
	}
}

// Records of programs are not errors of devices, and malformed records are counted.
func TestForged(t *testing.T) {
	m := newMachine(t)
	m.sample()
	m.sequence++
	m.writeRaw(fmt.Sprintf("12,%d,1,-;%s\n", m.sequence, fault))
	m.writeRaw("no record\n")
	m.write("NVRM: Xid (PCI:0000:65:00)")
	got := m.sample()
	expect.That(t, len(got) == 0, "forged: %+v", got)
	expect.Equal(t, "rejected", driver.Rejections{driver.ReasonMalformed: 2}, m.Rejected())
}

// fakeLog answers like /dev/kmsg: one record, or one error, for each read.
func (m *machine) fakeLog(answers ...any) {
	m.read = func(_ int, b []byte) (int, error) {
		if len(answers) == 0 {
			return 0, syscall.EAGAIN
		}
		answer := answers[0]
		answers = answers[1:]
		if err, ok := answer.(error); ok {
			return 0, err
		}
		return copy(b, answer.(string)), nil
	}
}

// Records that were overwritten, or that can't be read, cost themselves alone.
func TestOverwritten(t *testing.T) {
	m := newMachine(t)
	m.sample()
	first := m.record(fault)
	m.sequence += 40
	m.fakeLog(first, syscall.EPIPE, m.record(fault), syscall.EINTR, syscall.EINVAL, m.record(fault))
	expect.Is(t, m.sample()[0].Readings[0].Value, 3, "errors are counted")
	want := driver.Rejections{driver.ReasonOverwritten: 40, driver.ReasonTooLarge: 1}
	expect.Equal(t, "rejected", want, m.Rejected())
}

// A log that fails is opened again, and records that were read are not counted twice.
func TestReopened(t *testing.T) {
	m := newMachine(t)
	m.sample()
	m.write(fault)
	m.sample()
	m.fakeLog(syscall.EIO)
	m.pass(time.Second)
	m.sampleError(syscall.EIO)
	m.read = syscall.Read
	m.write(nowhere)
	m.pass(retryInterval)
	got := m.sample()[0].Readings
	expect.That(t, len(got) == 2 && got[0].Value == 1 && got[1].Value == 1, "after it was opened again: %+v", got)
}

func (m *machine) sampleError(want error) {
	_, err := m.Sample(m.Context())
	must.That(m, errors.Is(err, want), "error %v, want %v", err, want)
}

// A log that is not there, or that this process may not read, is an error with its reason where
// there is a GPU; it is read as soon as it can be.
func TestUnreadable(t *testing.T) {
	m := newMachine(t)
	must.Do(t, os.Remove(m.path))
	for range 2 { // also between two attempts
		_, err := m.Sample(t.Context())
		expect.That(t, driver.ReasonOf(err) == driver.ReasonAbsent, "error %v, reason %s", err, driver.ReasonOf(err))
		m.pass(time.Second)
	}
	expect.Is(t, driver.ReasonOf(m.failure("open", &fs.PathError{Err: syscall.EPERM})), driver.ReasonForbidden,
		"not permitted has the reason")
	m.write(fault)
	m.pass(retryInterval)
	if got := m.sample(); len(got) > 0 {
		t.Errorf("errors of before: %+v", got)
	}
	m.write(fault)
	if got := m.sample(); len(got) != 1 {
		t.Errorf("%d samples, want 1", len(got))
	}
}

// Without a GPU of NVIDIA the log is not opened, whatever is there.
func TestNoGPU(t *testing.T) {
	m := newMachine(t)
	m.sysfs = t.TempDir()
	must.Do(t, os.Remove(m.path))
	if got := m.sample(); len(got) > 0 || m.file != nil || len(m.Describe()) != 1 {
		t.Errorf("samples %+v, description %v", got, m.Describe())
	}
	m.sysfs = filepath.Join(m.root, "sys") // the GPU comes
	m.pass(retryInterval)
	m.sampleError(fs.ErrNotExist)
}

// With Watch the process is looked up when the error comes, and not at the next sample.
func TestWatch(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(m.root, "pipe")
	must.Do(t, syscall.Mkfifo(path, 0o600))
	m.path = path
	asked := make(chan int, 1)
	m.podOf = func(pid int) string { asked <- pid; return "uid" }
	m.sample()
	pipe := must.Get(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer func() { _ = pipe.Close() }()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { m.Watch(ctx); close(ended) }()
	must.Get(pipe.WriteString(m.record(fault)))(t)
	if pid := <-asked; pid != 4242 {
		t.Errorf("process %d is looked up", pid)
	}
	stop()
	<-ended
	e := m.sample()[0].Events
	expect.That(t, len(e) == 1 && e[0].PodUID == "uid", "events %+v", e)
}

// A pipe of packets (pipe(2)) gives one record for each read and nothing more at its end, as
// /dev/kmsg does: records with fields of their own (Documentation/ABI/testing/dev-kmsg) are read to
// the end, those that are written later at the next reading, and programs' records are no errors.
func TestRecordsOneByOne(t *testing.T) {
	m := newMachine(t)
	m.path = filepath.Join(m.root, "pipe")
	must.Do(t, unix.Mkfifo(m.path, 0o600))
	m.sample() // opens it
	log := must.Get(os.OpenFile(m.path, os.O_WRONLY, 0))(t)
	defer func() { _ = log.Close() }()
	must.Get(unix.FcntlInt(log.Fd(), unix.F_SETFL, unix.O_DIRECT))(t)
	write := func(record string) {
		must.Get(log.WriteString(record))(t)
	}
	write("6,1,100,-;nvidia 0000:65:00.0: enabling device\n SUBSYSTEM=pci\n DEVICE=+pci:0000:65:00.0\n")
	write("4,2,200,-;" + fault + "\n")
	write("12,3,300,-;" + fault + "\n")
	value := func() float64 { return m.sample()[0].Readings[0].Value }
	if n := value(); n != 1 || m.records != 3 || len(m.Rejected()) > 0 {
		t.Errorf("%v errors of %d records, rejected %v; want 1 of 3", n, m.records, m.Rejected())
	}
	write("4,4,400,-;" + fault + "\n")
	if n := value(); n != 2 || m.records != 4 {
		t.Errorf("%v errors of %d records, want 2 of 4", n, m.records)
	}
}

// The kernel's own log is read to its end, all of it is in the format, and a record that this test
// writes, where it may, is a program's.
func TestOfThisMachine(t *testing.T) {
	const path = "/dev/kmsg"
	m := newMachine(t)
	m.path, m.begun = path, true // from its begin
	m.sysfs = filepath.Join(m.root, "sys")
	m.now, m.uptime = time.Now, uptime
	if log, err := os.OpenFile(path, os.O_WRONLY, 0); err != nil {
		t.Logf("nothing is written: %v", err)
	} else {
		if _, err := log.WriteString(fault); err != nil {
			t.Logf("nothing is written: %v", err)
		}
		_ = log.Close()
	}
	samples, err := m.Sample(t.Context())
	if err != nil {
		t.Skip("NOT RUN: ", err)
	}
	rejected := m.Rejected()
	if rejected[driver.ReasonMalformed] > 0 || rejected[driver.ReasonTooLarge] > 0 || m.records == 0 || len(samples) > 0 {
		t.Errorf("%d records, rejected %v, errors %+v", m.records, rejected, samples)
	}
}

func TestSource(t *testing.T) {
	var m *machine
	begun := func(tb testing.TB) driver.Source {
		m = newMachine(tb)
		m.sample()
		m.write(fault)
		m.write("NVRM: Xid (PCI:0000:65:00 GPU-I:02 GPU-CI:01): 43, pid=1, name=a, Ch 00000008")
		return m.Source
	}
	drivertest.Run(t, drivertest.Config{
		New: begun, Fills: Fills(),
		Advance: func() { m.write(fault); m.pass(time.Second) },
		Now:     func() time.Time { return m.clock },
		Absent: func(tb testing.TB) driver.Source {
			m := newMachine(tb)
			m.sysfs = tb.TempDir()
			return m.Source
		},
	})
}

func BenchmarkSample(b *testing.B) {
	m := newMachine(b)
	m.sample()
	m.write(fault)
	b.ReportAllocs()
	for b.Loop() {
		m.sample()
	}
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../README.md", "kmsg", Fills()) }
