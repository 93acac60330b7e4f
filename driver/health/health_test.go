package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/health/healthtest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	good = healthv1.HealthStatus_HEALTHY
	bad  = healthv1.HealthStatus_UNHEALTHY
)

// node is a source on a node of its own, with a clock that stands still. Its looks are called by
// the test.
type node struct {
	*Source
	tb    testing.TB
	ctx   context.Context //nolint:containedctx // of the test
	clock time.Time
}

func newNode(tb testing.TB) *node {
	n := &node{Source: New(healthtest.Root(tb)), tb: tb, clock: time.Unix(1_800_000_000, 0)}
	n.now = func() time.Time { return n.clock }
	ctx, cancel := context.WithCancel(context.Background())
	n.ctx = ctx
	tb.Cleanup(func() {
		cancel()
		n.attempts.Wait()
	})
	return n
}

// later sets the clock forward.
func (n *node) later(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clock = n.clock.Add(d)
}

// state returns the health in a sample: DRIVER/DEVICE STATUS, sorted.
func (n *node) state() []string {
	samples, _ := n.Sample(n.ctx)
	var out []string
	for _, s := range samples {
		out = append(out, s.Driver+"/"+s.Device+" "+s.Readings[0].Labels[0])
	}
	slices.Sort(out)
	return out
}

// eventually looks until a condition holds.
func (n *node) eventually(what string, condition func() bool) {
	n.tb.Helper()
	for begun := time.Now(); !condition(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			n.tb.Fatalf("not in a minute: %s; the state is %q, described as %q", what, n.state(), n.Describe())
		}
		n.look(n.ctx)
	}
}

func (n *node) becomes(want ...string) {
	n.eventually(fmt.Sprintf("state %q", want), func() bool { return slices.Equal(n.state(), want) })
}

// settled waits until no attempt is in progress.
func (n *node) settled() {
	n.eventually("all attempts have ended", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, p := range n.plugins {
			if p.busy {
				return false
			}
		}
		return len(n.plugins) > 0
	})
}

func TestSource(t *testing.T) {
	start := func(tb testing.TB) (*node, *healthtest.Driver) {
		n := newNode(tb)
		sick := &healthtest.Driver{Name: "gpu.example.com"}
		sick.Set(healthtest.Device("gpu-0", good, ""), healthtest.Device("gpu-1", bad, "fell off the bus"))
		sick.Start(tb, n.root)
		well := &healthtest.Driver{Name: "nic.example.com", Services: []string{healthv1alpha1.DRAResourceHealthService}}
		well.Set(healthtest.Device("eth1", good, ""))
		well.Start(tb, n.root)
		n.becomes("gpu.example.com/gpu-0 healthy", "gpu.example.com/gpu-1 unhealthy", "nic.example.com/eth1 healthy")
		return n, sick
	}
	drivertest.Run(t, drivertest.Config{
		Fills: Fills(), Now: func() time.Time { return time.Unix(1_800_000_000, 0) },
		New: func(tb testing.TB) driver.Source {
			n, _ := start(tb)
			return n
		},
		Absent: func(tb testing.TB) driver.Source {
			s := New(filepath.Join(tb.TempDir(), "none"))
			s.look(tb.Context())
			return s
		},
		Faults: []drivertest.Fault{{
			Name: "a stream breaks",
			New: func(tb testing.TB) (driver.Source, func()) {
				n, sick := start(tb)
				return n, func() {
					sick.Break()
					n.eventually("an error", func() bool {
						_, err := n.Sample(n.ctx)
						return err != nil
					})
				}
			},
			Hits: func(s driver.Sample, r driver.Reading) bool {
				return s.Driver == "gpu.example.com" && r.Labels[0] != "unknown"
			},
		}},
	})
}

// Changes of health arrive when the driver reports them. A device without a report for its timeout
// is unknown; the default is the kubelet's 30 s. One that the driver no longer reports is then
// forgotten.
func TestTimeouts(t *testing.T) {
	n := newNode(t)
	d := &healthtest.Driver{Name: "a"}
	slow, negative := healthtest.Device("slow", good, ""), healthtest.Device("negative", good, "")
	slow.HealthCheckTimeoutSeconds, negative.HealthCheckTimeoutSeconds = 90, -1
	d.Set(healthtest.Device("usual", bad, ""), slow, negative)
	d.Start(t, n.root)
	n.becomes("a/negative healthy", "a/slow healthy", "a/usual unhealthy")
	n.later(defaultTimeout)
	n.becomes("a/negative healthy", "a/slow healthy", "a/usual unhealthy")
	n.later(1)
	n.becomes("a/negative unknown", "a/slow healthy", "a/usual unknown")
	d.Set(healthtest.Device("usual", good, ""))
	n.becomes("a/slow healthy", "a/usual healthy")
	n.later(90*time.Second - defaultTimeout)
	d.Set(healthtest.Device("usual", bad, ""))
	n.becomes("a/usual unhealthy")
	if got := n.Rejected(); len(got) != 0 {
		t.Errorf("rejected %v", got)
	}
}

// A driver that restarts has a new socket: it is asked at once. Of one that was killed nothing is
// known, and that is no error of the source; one whose stream fails is tried again after a delay.
func TestRestart(t *testing.T) {
	n := newNode(t)
	first := &healthtest.Driver{Name: "a"}
	first.Set(healthtest.Device("x", good, ""))
	first.Start(t, n.root)
	n.becomes("a/x healthy")
	first.Stop()
	n.becomes()
	second := &healthtest.Driver{Name: "a"}
	second.Set(healthtest.Device("x", bad, ""))
	second.Start(t, n.root)
	n.becomes("a/x unhealthy")

	second.Break()
	n.becomes("a/x unknown")
	n.settled()
	_, err := n.Sample(n.ctx)
	drivertest.Reason(t, err, driver.ReasonUnavailable)
	asked := second.Asked.Load()
	for range 3 {
		n.look(n.ctx)
		n.attempts.Wait()
	}
	if again := second.Asked.Load(); again != asked {
		t.Errorf("asked %d times within the delay", again-asked)
	}
	n.later(minDelay)
	n.look(n.ctx)
	n.settled()
	if got := second.Asked.Load(); got != asked+1 {
		t.Errorf("asked %d times after the delay", got-asked)
	}
	second.Kill()
	n.later(maxDelay)
	n.look(n.ctx)
	n.settled()
	if _, err := n.Sample(n.ctx); err != nil || len(n.state()) > 0 {
		t.Errorf("of a driver that was killed: %q, error %v", n.state(), err)
	}
	if got := n.Rejected(); len(got) != 0 {
		t.Errorf("rejected %v", got)
	}
}

// A plugin without the service is asked once, and again when its socket is another one. So is one
// that advertises the service and does not serve it, and one that is no DRA driver.
func TestUnserved(t *testing.T) {
	for name, d := range map[string]*healthtest.Driver{
		"not advertised": {Services: []string{"v1.DRAPlugin"}},
		"not served":     {Unserved: true},
		"storage":        {Type: registration.CSIPlugin},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			d.Name = "a"
			d.Start(t, n.root)
			n.settled()
			for range 3 {
				n.later(time.Hour)
				n.look(n.ctx)
			}
			n.settled()
			if asked := d.Asked.Load(); asked != 1 || d.Streams.Load() != 0 {
				t.Errorf("asked %d times, %d streams, want one question", asked, d.Streams.Load())
			}
			_, err := n.Sample(n.ctx)
			expect.That(t, err == nil && len(n.state()) == 0, "state %q, error %v", n.state(), err)
			d.Stop()
			again := &healthtest.Driver{Name: "a"}
			again.Set(healthtest.Device("x", good, ""))
			again.Start(t, n.root)
			n.becomes("a/x healthy")
		})
	}
}

// During a rolling update a driver has two plugins: the later one is followed.
func TestRollingUpdate(t *testing.T) {
	n := newNode(t)
	old := &healthtest.Driver{Name: "a", Socket: "a-1-reg.sock"}
	old.Set(healthtest.Device("x", good, ""))
	old.Start(t, n.root)
	n.becomes("a/x healthy")
	fresh := &healthtest.Driver{Name: "a", Socket: "a-2-reg.sock"}
	fresh.Set(healthtest.Device("x", bad, ""))
	fresh.Start(t, n.root)
	n.becomes("a/x unhealthy")
	fresh.Stop()
	n.becomes("a/x healthy")
}

// Reports are bounded, and faults in them are counted.
func TestMisbehaving(t *testing.T) {
	n := newNode(t)
	d := &healthtest.Driver{Name: "a"}
	report := []*healthv1.DeviceHealth{
		nil,
		{Device: &healthv1.DeviceIdentifier{PoolName: "node"}},
		healthtest.Device(strings.Repeat("x", maxName+1), good, ""),
		healthtest.Device("0", bad, ""), healthtest.Device("0", good, ""), healthtest.Device("1", 7, ""),
		healthtest.Device("2", bad, "two\nlines\x1b[0m "+strings.Repeat("é", driver.MaxMessage)),
	}
	for i := 3; i <= maxDevices+1; i++ {
		report = append(report, healthtest.Device(fmt.Sprintf("%d", i), good, ""))
	}
	d.Set(report...)
	d.Start(t, n.root)
	n.eventually("a report", func() bool { return len(n.state()) > 0 })
	state := n.state()
	if len(state) != maxDevices || state[0] != "a/0 healthy" || state[1] != "a/1 unknown" {
		t.Errorf("%d devices, first %q", len(state), state[:2])
	}
	want := driver.Rejections{
		driver.ReasonMissingPool: 1, driver.ReasonMissingDevice: 1, driver.ReasonTooLong: 1, driver.ReasonDuplicate: 1,
		driver.ReasonTooManyDevices: 2,
	}
	expect.Equal(t, "rejected", want, n.Rejected())
	message := n.plugins[filepath.Join(n.root, "plugins_registry", "a-reg.sock")].devices[deviceKey{"node", "2"}].message
	if !strings.HasPrefix(message, "two lines [0m éé") || !strings.HasSuffix(message, "é…") ||
		len(message) > driver.MaxMessage {
		t.Errorf("message of %d bytes: %q", len(message), message)
	}
}

// Messages that are too large end the stream; one more message than is read in a second waits.
func TestFlood(t *testing.T) {
	n := newNode(t)
	large := &healthtest.Driver{Name: "large"}
	large.Set(healthtest.Device("x", good, strings.Repeat("x", maxReport)))
	large.Start(t, n.root)
	n.eventually("an error", func() bool {
		_, err := n.Sample(n.ctx)
		return driver.ReasonOf(err) == driver.ReasonTooLarge
	})
	flood := &healthtest.Driver{Name: "flood", Flood: 2 * maxReports}
	flood.Set(healthtest.Device("x", good, ""))
	flood.Start(t, n.root)
	n.eventually("messages are held back", func() bool { return n.Rejected()[driver.ReasonRateLimited] > 0 })
	expect.That(t, slices.Contains(n.state(), "flood/x healthy"), "state %q", n.state())
}

// Sockets beyond the bound are counted, and a plugin that does not answer keeps none from being
// asked.
func TestManyPlugins(t *testing.T) {
	n := newNode(t)
	hung := &healthtest.Driver{Name: "0", Ask: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	hung.Start(t, n.root)
	d := &healthtest.Driver{Name: "1"}
	d.Set(healthtest.Device("x", good, ""))
	d.Start(t, n.root)
	for i := range maxPlugins {
		l := must.Get(new(net.ListenConfig).Listen(t.Context(), "unix",
			filepath.Join(n.root, "plugins_registry", fmt.Sprintf("z%d", i))))(t)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		_ = l.Close()
	}
	n.becomes("1/x healthy")
	got := n.Rejected()[driver.ReasonTooMany]
	expect.That(t, got >= 2, "%d sockets too many, want 2 at each look", got)
}

// A plugin whose GetInfo fails is counted, and is not an error of a DRA driver.
func TestUnknownPlugin(t *testing.T) {
	n := newNode(t)
	d := &healthtest.Driver{Name: "csi", Ask: func(context.Context) error { return errors.New("not today") }}
	d.Start(t, n.root)
	n.settled()
	_, err := n.Sample(n.ctx)
	expect.That(t, err == nil, "%v", err)
	expect.Equal(t, "rejected", driver.Rejections{driver.ReasonOther: 1}, n.Rejected())
	if got := n.Describe(); len(got) != 1 || !strings.HasPrefix(got[0], "csi-reg.sock: ask a plugin what it is: ") {
		t.Errorf("described as %q", got)
	}
}

// A kubelet's root that is mounted elsewhere has the drivers' sockets too; a plugin may name its
// socket anywhere, or serve all on one.
func TestEndpoint(t *testing.T) {
	s := New(healthtest.Root(t))
	must.Do(t, os.WriteFile(filepath.Join(s.root, "plugins", "here.sock"), nil, 0o600))
	for told, want := range map[string]string{
		"":                                      "registration",
		"/run/x.sock":                           "/run/x.sock",
		"/var/lib/kubelet/plugins/gone.sock":    "/var/lib/kubelet/plugins/gone.sock",
		"/var/lib/kubelet/plugins/here.sock":    s.root + "/plugins/here.sock",
		"/x/plugins/../../../here.sock":         s.root + "/plugins/here.sock",
		"/var/lib/kubelet/plugins/../here.sock": s.root + "/plugins/here.sock",
	} {
		if got := s.endpoint("registration", told); got != want {
			t.Errorf("endpoint %q is %q here, want %q", told, got, want)
		}
	}
}

// Watch follows the drivers by itself, and leaves no goroutine behind.
func TestWatch(t *testing.T) {
	root := healthtest.Root(t)
	d := &healthtest.Driver{Name: "a"}
	d.Set(healthtest.Device("x", bad, "broken"))
	d.Start(t, root)
	s := New(root)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Watch(ctx) }()
	want := []string{
		"a: streams health (v1.DRAResourceHealth): 0 healthy, 1 unhealthy, 0 unknown",
	}
	for begun := time.Now(); !slices.Equal(s.Describe(), want); time.Sleep(time.Millisecond) {
		must.That(t, time.Since(begun) <= time.Minute, "described as %q, want %q", s.Describe(), want)
	}
	cancel()
	<-ended
	for path, p := range s.plugins {
		expect.That(t, !p.busy, "the attempt at %s goes on after the end of Watch", path)
	}
	nowhere := New("/nowhere")
	nowhere.look(t.Context())
	if got := nowhere.Describe(); !strings.Contains(got[0], "not mounted") {
		t.Errorf("without a kubelet it is described as %q", got)
	}
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../README.md", "health", Fills()) }

// Whatever a driver reports, the kept data is bounded, and every sample is valid.
func FuzzReport(f *testing.F) {
	for _, devices := range [][]*healthv1.DeviceHealth{
		nil,
		{nil},
		{healthtest.Device("gpu-0", good, ""), healthtest.Device("gpu-0", bad, "a\nb")},
		{healthtest.Device("gpu-1", 9, strings.Repeat("é", driver.MaxMessage))},
		{{
			Device:                    &healthv1.DeviceIdentifier{PoolName: "p", DeviceName: "d"},
			HealthCheckTimeoutSeconds: -1 << 63, LastUpdatedTime: 1<<63 - 1,
		}},
	} {
		wire := must.Get(proto.Marshal(&healthv1.NodeWatchResourcesResponse{Devices: devices}))(f)
		f.Add(wire)
	}
	const room = 4
	now := time.Unix(1_800_000_000, 0)
	f.Fuzz(func(t *testing.T, wire []byte) {
		var report healthv1.NodeWatchResourcesResponse
		if proto.Unmarshal(wire, &report) != nil {
			return
		}
		p := &plugin{driver: "d"}
		p.take(&report, now, room, driver.Rejections{})
		expect.That(t, len(p.devices) <= room && len(p.devices) <= len(report.GetDevices()),
			"%d devices of %d", len(p.devices), len(report.GetDevices()))
		for _, d := range p.devices {
			plain := utf8.ValidString(d.message) && !strings.ContainsFunc(d.message, unicode.IsControl)
			expect.That(t, plain && len(d.message) <= driver.MaxMessage && d.timeout > 0 && d.timeout <= maxTimeout,
				"kept %+v", d)
		}
		for _, at := range []time.Time{now, now.Add(maxTimeout + 1)} {
			expect.OK(t, drivertest.Validate(p.samples(at), at))
		}
	})
}
