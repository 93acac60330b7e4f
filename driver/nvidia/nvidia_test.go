package nvidia_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPlacementInName(t *testing.T) {
	for name, want := range map[string]string{
		"gpu-0-mig-1g10gb-19-0":     nvidia.Placement(0, 19, 0),
		"gpu-12-mig-1g10gb-me-20-6": nvidia.Placement(12, 20, 6),
		"gpu-0":                     "",
		"gpu-0-mig-19-0":            "",
		"gpu-x-mig-1g10gb-19-0":     "",
		"gpu-0-mig-1g10gb-19-":      "",
	} {
		expect.Is(t, nvidia.PlacementInName(name), want, "%s", name)
	}
}

func TestComputeSlices(t *testing.T) {
	for profile, want := range map[string]int{
		"1g.10gb": 1, "3g.40gb": 3, "7g.80gb": 7, "1g.10gb+me": 1, "1c.3g.40gb": 1, "2c.3g.40gb": 2,
		"": 0, "g.10gb": 0, "3": 0, "-1g.10gb": 0, "1cg.10gb": 0, "10gb": 0, "999g.1gb": 0,
	} {
		expect.Is(t, nvidia.ComputeSlices(profile), want, "%q", profile)
	}
}

// The names that NVIDIA's driver makes of MIG devices have their placement, and their GPU's name.
// The driver writes the profile without its dot, and the + of an attribute as a dash.
func FuzzMIGNames(f *testing.F) {
	f.Add(uint8(0), uint8(1), uint8(10), "", uint8(19), uint8(2))
	f.Add(uint8(12), uint8(1), uint8(10), "+me", uint8(20), uint8(6))
	f.Add(uint8(3), uint8(1), uint8(24), "+gfx", uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, minor, compute, memory uint8, attribute string, profile, start uint8) {
		if !slices.Contains([]string{"", "+me", "+gfx", "-me", "+me.all"}, attribute) {
			attribute = ""
		}
		text := fmt.Sprintf("%dg.%dgb%s", compute, memory, attribute)
		parent := fmt.Sprintf("gpu-%d", minor)
		name := fmt.Sprintf("%s-mig-%s-%d-%d", parent, strings.NewReplacer(".", "", "+", "-").Replace(text), profile, start)
		got, want := nvidia.PlacementInName(name), nvidia.Placement(int(minor), int(profile), int(start))
		expect.That(t, got == want, "%s: placement %q, want %q", name, got, want)
		expect.Is(t, nvidia.ParentInName(name), parent, "%s: parent", name)
		expect.Is(t, nvidia.ParentInName(parent), "", "%s has the parent", parent)
	})
}

func TestXIDs(t *testing.T) {
	var x *nvidia.XIDs
	now, before := time.Unix(10, 0), time.Unix(5, 0)
	report := func() driver.Sample {
		var s driver.Sample
		x.Report(&s, now)
		return s
	}
	if got := report(); got.Readings != nil || got.Events != nil {
		t.Errorf("of nothing: %v", got)
	}
	x = &nvidia.XIDs{}
	count := func(code int64, severity xid.Severity, before time.Time, at time.Time) {
		x.Count(nvidia.Error{Code: code, Severity: severity, Before: before, Event: driver.Event{At: at}})
	}
	count(79, "", before, time.Time{})
	count(31, "", before.Add(time.Second), before.Add(2*time.Second))
	count(79, "", before.Add(time.Second), before.Add(3*time.Second))
	want := driver.Sample{
		Readings: []driver.Reading{
			{Quantity: driver.Errors, Labels: driver.Labels{"xid", "79"}, Value: 2, At: now, Since: before},
			{Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, Value: 1, At: now, Since: before.Add(time.Second)},
		},
		Events: []driver.Event{
			{Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, At: before.Add(2 * time.Second)},
			{Quantity: driver.Errors, Labels: driver.Labels{"xid", "79"}, At: before.Add(3 * time.Second)},
		},
	}
	expect.Equal(t, "the report", want, report())
	for code := range int64(nvidia.MaxCodes + 100) {
		count(1000+code, "", before, time.Time{})
	}
	count(79, "", before, time.Time{})
	got := report().Readings
	last := got[len(got)-1]
	expect.That(t, len(got) == nvidia.MaxCodes+1 && last.Labels[1] == "other" && last.Value == 102 && got[0].Value == 3,
		"%d codes, the first is %+v, the last %+v", len(got), got[0], last)
	events := report().Events
	expect.That(t, events == nil, "events were reported again: %v", events)
}

// Errors of NVLink 5 are counted by severity. Those without one are reported one report later, so
// that a log with the severity is first.
func TestSeverity(t *testing.T) {
	x := &nvidia.XIDs{}
	now := time.Unix(10, 0)
	for _, severity := range []xid.Severity{xid.Fatal, xid.Nonfatal, xid.Nonfatal, xid.Unknown, xid.NoSeverity} {
		x.Count(nvidia.Error{Code: 145, Severity: severity, Event: driver.Event{At: now}})
	}
	report := func() (out string, events int) {
		var s driver.Sample
		x.Report(&s, now)
		for _, r := range s.Readings {
			out += fmt.Sprint(r.Labels[1], " ", r.Labels[2], " ", r.Value, " ")
		}
		return out, len(s.Events)
	}
	for i, want := range []string{
		"145 fatal 1 145 nonfatal 2 ",
		"145 fatal 1 145 nonfatal 2 145 unknown 2 ",
		"145 fatal 1 145 nonfatal 2 145 unknown 2 ",
	} {
		if got, events := report(); got != want || events != []int{3, 2, 0}[i] {
			t.Errorf("report %d: %s with %d events, want %s", i, got, events, want)
		}
	}
}

func TestRetry(t *testing.T) {
	r := nvidia.NewRetry(time.Second, 5*time.Second)
	now := time.Unix(100, 0)
	expect.That(t, r.Due(now) && !r.Waiting(), "the first attempt is not due")
	for _, seconds := range []int64{1, 2, 4, 5, 5} {
		r.Postpone(now)
		due := time.Unix(100+seconds, 0)
		expect.That(t, !r.Due(due.Add(-1)) && r.Due(due) && r.Waiting(), "an attempt is not due after just %d s", seconds)
	}
	r.Reset()
	expect.That(t, !r.Waiting() && !r.Due(now.Add(4*time.Second)),
		"a reset brings the attempt forward, or leaves it waiting")
	r.Postpone(now)
	expect.That(t, r.Due(now.Add(time.Second)), "after a reset the delay is not the first one")
}

type connection struct{ number int }

func newSession() nvidia.Session[connection] {
	return nvidia.Session[connection]{
		Retry: nvidia.NewRetry(time.Second, time.Minute), Opening: "open it",
		Closing: "close it",
	}
}

func TestSession(t *testing.T) {
	s := newSession()
	ctx, now := t.Context(), time.Unix(100, 0)
	opens := 0
	var refusal error
	open := func() (*connection, error) {
		opens++
		if refusal != nil {
			return nil, refusal
		}
		return &connection{opens}, nil
	}
	step := func(wantFresh bool, wantErr error, wantNumber int) {
		t.Helper()
		fresh, err := s.Open(ctx, now, open)
		if fresh != wantFresh || !errors.Is(err, wantErr) || opens != wantNumber || (s.Current() != nil) != (wantErr == nil) {
			t.Errorf("fresh %v, error %v, %d attempts, session %v", fresh, err, opens, s.Current())
		}
	}
	step(true, nil, 1)
	step(false, nil, 1)
	closed := 0
	for range 2 {
		expect.OK(t, s.Close(ctx, func(c *connection) error { closed = c.number; return nil }))
	}
	expect.That(t, closed == 1 && s.Current() == nil, "session %d was closed, the current one is %v", closed, s.Current())
	refusal = errors.New("refused")
	step(false, refusal, 2)
	step(false, refusal, 2) // not due
	now = now.Add(time.Second)
	step(false, refusal, 3)
	now = now.Add(time.Second)
	step(false, refusal, 3) // the delay has doubled
	refusal = nil
	now = now.Add(time.Second)
	step(true, nil, 4)
	broken := errors.New("broken")
	s.Fail(now, broken)
	expect.OK(t, s.Close(ctx, func(*connection) error { return nil }))
	step(false, broken, 4)
}

// A call that hangs is reported, not started a second time, and used when it returns.
func TestSessionHangs(t *testing.T) {
	s := newSession()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	now, release, opens := time.Unix(100, 0), make(chan struct{}), 0
	open := func() (*connection, error) {
		opens++
		<-release
		return &connection{}, nil
	}
	for range 3 {
		if _, err := s.Open(ended, now, open); driver.ReasonOf(err) != driver.ReasonHung || s.Current() != nil {
			t.Fatalf("while it hangs: %v, %v", err, s.Current())
		}
	}
	close(release)
	if fresh, err := s.Open(t.Context(), now, open); err != nil || !fresh || opens != 1 {
		t.Errorf("fresh %v, error %v, %d attempts", fresh, err, opens)
	}
	release = make(chan struct{})
	hang := func(*connection) error { <-release; return errors.New("close failed") }
	if err := s.Close(ended, hang); driver.ReasonOf(err) != driver.ReasonHung {
		t.Errorf("while closing hangs: %v", err)
	}
	if _, err := s.Open(ended, now, open); driver.ReasonOf(err) != driver.ReasonHung || opens != 1 {
		t.Errorf("opened while closing hangs: %v", err)
	}
	close(release)
	if err := s.Close(t.Context(), hang); err == nil || err.Error() != "close failed" {
		t.Errorf("after closing hung: %v", err)
	}
}
