package recorder_test

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// story lets ticks pass and gives their snapshots to a recorder.
type story struct {
	*testing.T
	*exportertest.History
	*recorder.Recorder
	news []recorder.News
}

func newStory(t *testing.T) *story {
	return &story{
		T: t, History: exportertest.NewHistory(t),
		Recorder: recorder.New(recorder.Config{Interval: time.Second}),
	}
}

// pass lets seconds pass, and returns the incidents that were opened.
func (s *story) pass(seconds int) []*recorder.Incident {
	var opened []*recorder.Incident
	for range seconds {
		s.Pass(time.Second)
		news := s.Record(s.Last.Snapshot)
		s.news = append(s.news, news)
		opened = append(opened, news.Opened...)
	}
	return opened
}

func (s *story) xid(code string, count float64, at time.Time, pid int) {
	s.Read(jointest.Watts(300), driver.Reading{
		Quantity: driver.Errors, Labels: driver.Labels{"xid", code}, Value: count, Since: jointest.Start().Add(1),
	})
	if !at.IsZero() {
		s.In.Sources[0].Samples[0].Events = []driver.Event{
			{Quantity: driver.Errors, Labels: driver.Labels{"xid", code}, At: at, PID: pid},
		}
	}
}

// one returns the only incident.
func one(t *testing.T, incidents []*recorder.Incident) *recorder.Incident {
	must.That(t, len(incidents) == 1, "%d incidents, want 1: %+v", len(incidents), incidents)
	return incidents[0]
}

// An error of one process is an incident of its pod alone, with the minute before and after.
func TestErrorOfOneProcess(t *testing.T) {
	s := newStory(t)
	s.Hold("a", "a").ShareID = "1"
	s.Hold("b", "b").ShareID = "2"
	s.In.PodOf = map[int]string{7: "uid-a", 8: "uid-b"}
	for range 120 {
		s.Read(jointest.Watts(300))
		if got := s.pass(1); len(got) > 0 {
			t.Fatalf("an incident before there was any: %+v", got[0])
		}
	}
	happened := s.Now.Add(-300 * time.Millisecond)
	s.xid("31", 1, happened, 8)
	i := one(t, s.pass(1))
	expect.That(t, i.Kind == recorder.XID && i.Code == "31" && i.Onset.Equal(happened) && i.Open(),
		"the incident is %+v", i)
	expect.Equal(t, "pods that were hit", []string{"team/b"}, i.Pods())
	expect.Equal(t, "claims that were hit", []string{"team/b"}, i.Claims())
	expect.That(t, len(i.Holders) == 2, "the device had 2 holders, the incident has %+v", i.Holders)
	s.Read(jointest.Watts(150))
	s.pass(90)
	i = one(t, s.Incidents())
	must.That(t, i.Open() && i.Chart != nil, "the incident has ended, or has no recording: %+v", i)
	first, last := i.Chart.Times[0], i.Chart.Times[len(i.Chart.Times)-1]
	before, after := happened.Sub(first), last.Sub(happened)
	expect.That(t, before >= 58*time.Second && before <= time.Minute && after >= 58*time.Second && after <= 61*time.Second,
		"the recording reaches from %v before to %v after", before, after)
	checkPower(t, i, happened)
}

// checkPower checks that the device drew 300 W before the incident and 150 W after it, half of it
// for the claim that was hit, the second of two.
func checkPower(t *testing.T, i *recorder.Incident, happened time.Time) {
	t.Helper()
	for _, of := range []struct {
		kind          recorder.OwnerKind
		name          string
		before, after float64
	}{{recorder.OfDevice, "", 300, 150}, {recorder.OfClaim, "b", 150, 75}} {
		n := slices.IndexFunc(i.Chart.Series, func(c recorder.ChartSeries) bool {
			return c.Of == of.kind && c.Name == of.name && c.Quantity == "power"
		})
		if n < 0 {
			t.Errorf("no power of %s %s", of.kind, of.name)
			continue
		}
		for j, v := range i.Chart.Series[n].Values.Floats() {
			want := of.before
			if i.Chart.Times[j].After(happened.Add(time.Second)) {
				want = of.after
			}
			must.That(t, !math.IsNaN(v) && math.Abs(v-want) <= 1e-3*want,
				"%s %s at %v: %v W, want %v", of.kind, of.name, i.Chart.Times[j], v, want)
		}
	}
}

// The same error that happens again to the same holders is counted in the same incident; one that
// hits another holder, or ten minutes later, is another one.
func TestSameIncident(t *testing.T) {
	s := newStory(t)
	s.Hold("a", "a")
	s.Read(jointest.Watts(300))
	s.pass(3)
	errors := 0.0
	fail := func() []*recorder.Incident {
		errors++
		s.xid("31", errors, time.Time{}, 0)
		return s.pass(1)
	}
	one(t, fail())
	for range 5 {
		s.pass(40)
		if got := fail(); len(got) > 0 {
			t.Errorf("the same again is told again: %+v", got[0])
		}
	}
	if i := one(t, s.Incidents()); i.Count != 6 || !i.Last.After(i.Onset.Add(190*time.Second)) {
		t.Errorf("%d errors until %v, want 6", i.Count, i.Last.Sub(i.Onset))
	}
	s.Free("a")
	s.Hold("b", "b")
	s.pass(5)
	one(t, fail())
	s.pass(601)
	one(t, fail())
}

// Each change of a device's condition for the worse is one incident for its holders. A condition
// from the start is none.
func TestConditions(t *testing.T) {
	health := func(status string) driver.Reading {
		return driver.Reading{Quantity: driver.Health, Labels: driver.Labels{status}, Value: 1}
	}
	nvlink := func(severity string) func(*story) {
		return func(s *story) {
			s.Read(jointest.Watts(1), driver.Reading{
				Quantity: driver.Errors, Labels: driver.Labels{"xid", "145", severity}, Value: 1, Since: jointest.Start().Add(1),
			})
		}
	}
	taint := driver.Taint{Key: "gpu.example.com/bad", Effect: "NoExecute"}
	tests := []struct {
		name   string
		begin  func(*story)
		change func(*story)
		want   recorder.Kind
	}{
		{
			name: "unhealthy", want: recorder.Unhealthy,
			begin:  func(s *story) { s.Read(jointest.Watts(1), health("healthy")) },
			change: func(s *story) { s.Read(jointest.Watts(1), health("unhealthy")) },
		},
		{
			name: "healthy again", begin: func(s *story) { s.Read(jointest.Watts(1), health("unhealthy")) },
			change: func(s *story) { s.Read(jointest.Watts(1), health("healthy")) },
		},
		{
			name: "unhealthy from the start", begin: func(s *story) { s.Read(jointest.Watts(1), health("unhealthy")) },
			change: func(s *story) { s.Read(jointest.Watts(1), health("unhealthy")) },
		},
		{
			name: "lost", want: recorder.DeviceLost, begin: func(s *story) { s.Read(jointest.Watts(1)) },
			change: func(s *story) { s.Read() },
		},
		{
			name: "tainted", want: recorder.NoExecuteTaint, begin: func(s *story) { s.Read(jointest.Watts(1)) },
			change: func(s *story) {
				s.In.Inventory = driver.Inventory{jointest.ID("gpu-0"): {
					Hardware: driver.Hardware{UUID: "gpu-0"}, Taints: []driver.Taint{taint},
				}}
			},
		},
		{
			name: "tainted for new pods", begin: func(s *story) { s.Read(jointest.Watts(1)) },
			change: func(s *story) {
				s.In.Inventory = driver.Inventory{jointest.ID("gpu-0"): {
					Hardware: driver.Hardware{UUID: "gpu-0"}, Taints: []driver.Taint{{Key: "a", Effect: "NoSchedule"}},
				}}
			},
		},
		{name: "nonfatal error of NVLink", begin: func(s *story) { s.Read(jointest.Watts(1)) }, change: nvlink("nonfatal")},
		{
			name: "fatal error of NVLink", want: recorder.XID, begin: func(s *story) { s.Read(jointest.Watts(1)) },
			change: nvlink("fatal"),
		},
		{
			name: "corrected error", begin: func(s *story) { s.Read(jointest.Watts(1)) },
			change: func(s *story) {
				s.Read(jointest.Watts(1), driver.Reading{
					Quantity: driver.Errors, Labels: driver.Labels{"ecc_corrected"}, Value: 9, Since: jointest.Start().Add(1),
				})
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory(t)
			s.Hold("a", "a")
			tt.begin(s)
			if got := s.pass(5); len(got) > 0 {
				t.Fatalf("an incident at the start: %+v", got[0])
			}
			tt.change(s)
			got := s.pass(20)
			if tt.want == "" {
				if len(got) > 0 {
					t.Errorf("an incident: %+v", got[0])
				}
				return
			}
			i := one(t, got)
			expect.That(t, i.Kind == tt.want && slices.Equal(i.Pods(), []string{"team/a"}),
				"%s of %v, want %s of team/a", i.Kind, i.Pods(), tt.want)
		})
	}
}

// A claim that ends within a minute of an error that hit it, or while its device is unhealthy, is
// an incident, another one is not. An error that names the process of another claim's pod did not
// hit it.
func TestClaimEndsInError(t *testing.T) {
	const other, own = 7, 8 // processes
	for _, test := range []struct {
		name      string
		pid       int // that the error names; 0: none
		after     int // seconds from the error to the end
		unhealthy bool
		without   bool // errors by holder
		want      bool
	}{
		{name: "an error without a process", after: 20, want: true},
		{name: "an error without a process long ago", after: 100},
		{name: "its own error", pid: own, after: 20, want: true},
		{name: "its own error long ago", pid: own, after: 100},
		{name: "an error of another claim", pid: other, after: 20},
		{name: "an error of another claim on an unhealthy device", pid: other, after: 20, unhealthy: true, want: true},
		{name: "errors are not counted by holder", pid: other, after: 20, without: true, want: true},
		{name: "errors are not counted by holder, long ago", pid: other, after: 100, without: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStory(t)
			config := exportertest.LedgerConfig()
			config.WithoutErrors = test.without
			s.Ledger = ledger.New(config)
			s.Hold("a", "a").ShareID = "1"
			s.Hold("b", "b").ShareID = "2"
			s.In.PodOf = map[int]string{own: "uid-a", other: "uid-b"}
			s.Read(jointest.Watts(300))
			s.pass(3)
			s.xid("31", 1, s.Now.Add(-300*time.Millisecond), test.pid)
			one(t, s.pass(1))
			if test.unhealthy {
				s.Read(jointest.Watts(300), driver.Reading{Quantity: driver.Health, Labels: driver.Labels{"unhealthy"}, Value: 1})
			}
			s.pass(test.after)
			s.Free("a")
			got := s.pass(3)
			if !test.want {
				if len(got) > 0 {
					t.Errorf("an incident: %+v", got[0])
				}
				return
			}
			if i := one(t, got); i.Kind != recorder.ClaimEndsInError || !slices.Equal(i.Claims(), []string{"team/a"}) {
				t.Errorf("%s of %v, want claim_ends_in_error of team/a", i.Kind, i.Claims())
			}
		})
	}
}

// An error with a known time hits the holders at that time, and possibly one whose end is known
// only to an interval. If a holder has ended since, it is still the one that was hit.
func TestHoldersAtAnError(t *testing.T) {
	for _, test := range []struct {
		name          string
		end, read     int           // the ticks from which it is not held, and at which the error is read
		at            time.Duration // of the error; 0: when it is read
		hit, possible []string
	}{
		{name: "long after the end", end: 10, read: 30, hit: []string{"team/later"}},
		{name: "an interval after the end", end: 10, read: 11, hit: []string{"team/later"}},
		{
			name: "when it may have ended", end: 10, read: 10, at: 9800 * time.Millisecond,
			possible: []string{"team/ended", "team/later"},
		},
		{name: "before the end", end: 10, read: 20, at: 8500 * time.Millisecond, hit: []string{"team/ended"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStory(t)
			began := s.Now
			s.Hold("ended", "ended")
			s.Read(jointest.Watts(300))
			s.pass(test.end)
			s.Free("ended")
			s.Hold("later", "later")
			s.pass(test.read - test.end)
			at := s.Now
			if test.at > 0 {
				at = began.Add(test.at)
			}
			s.xid("31", 1, at, 0)
			i := one(t, slices.DeleteFunc(s.pass(1), func(i *recorder.Incident) bool { return i.Kind != recorder.XID }))
			expect.That(t, i.Onset.Equal(at) && i.NotBefore.IsZero(),
				"the error happened at %v, not before %v; want %v", i.Onset, i.NotBefore, at)
			s.expectHits(i, test.hit, test.possible)
		})
	}
}

// expectHits checks which claims an incident hit, and that the holders are these alone.
func (s *story) expectHits(i *recorder.Incident, hit, possible []string) {
	expect.Equal(s, "claims that were hit", hit, i.Claims())
	expect.Equal(s, "claims that may have been hit", possible, i.PossibleClaims())
	expect.Equal(s, "pods that were hit", hit, i.Pods())
}

// An error that happened between two readings, 5 s apart, hit the holders of all of that time, and
// possibly those of a part of it: the holders for which the metrics count it.
func TestPossibleHits(t *testing.T) {
	type span [2]int // the ticks at which it begins and ends to hold the device; 0: before, after all
	for name, test := range map[string]struct {
		held          map[string]span
		hit, possible []string
	}{
		"all the time":         {held: map[string]span{"a": {1, 0}}, hit: []string{"team/a"}},
		"killed by it":         {held: map[string]span{"a": {1, 9}}, possible: []string{"team/a"}},
		"killed, and the next": {held: map[string]span{"a": {1, 8}, "b": {9, 0}}, possible: []string{"team/a", "team/b"}},
		"ended before":         {held: map[string]span{"a": {1, 4}, "b": {5, 0}}, hit: []string{"team/b"}},
		"one in between":       {held: map[string]span{"a": {7, 9}}, possible: []string{"team/a"}},
		"a sharer comes": {
			held: map[string]span{"a": {1, 0}, "b": {8, 0}}, hit: []string{"team/a"}, possible: []string{"team/b"},
		},
		"admin access": {held: map[string]span{"a": {1, 0}, "admin": {1, 0}}, hit: []string{"team/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			var opened []*recorder.Incident
			for tick := range 11 {
				for _, claim := range slices.Sorted(maps.Keys(test.held)) {
					switch tick {
					case test.held[claim][0]:
						s.Hold(claim, claim).Admin = claim == "admin"
					case test.held[claim][1]:
						s.Free(claim)
					}
				}
				switch tick {
				case 0, 6:
					s.xid("31", 0, time.Time{}, 0)
				case 10:
					s.xid("31", 1, time.Time{}, 0)
				}
				opened = append(opened, s.pass(1)...)
			}
			i := one(t, slices.DeleteFunc(opened, func(i *recorder.Incident) bool { return i.Kind != recorder.XID }))
			from, to := jointest.Start().Add(6*time.Second), jointest.Start().Add(10*time.Second)
			expect.That(t, i.Onset.Equal(to) && i.NotBefore.Equal(from),
				"it happened from %v to %v, want %v to %v", i.NotBefore, i.Onset, from, to)
			s.expectHits(i, test.hit, test.possible)
			counted := map[string]bool{}
			for key := range exportertest.Scrape(t, s.Last).Matching("dra_claim_errors_total") {
				counted["team/"+exportertest.ParseKey(key)["resourceclaim_name"]] = true
			}
			told := slices.Concat(test.hit, test.possible)
			slices.Sort(told)
			if diff := cmp.Diff(slices.Sorted(maps.Keys(counted)), told); diff != "" {
				t.Errorf("the metrics count it for others than the incident (-metrics +incident):\n%s", diff)
			}
		})
	}
}

// The same error for a pod that was created again under the same name is another incident. A
// repetition is reported with its count.
func TestRepeated(t *testing.T) {
	s := newStory(t)
	held := s.Hold("a", "a")
	s.Read(jointest.Watts(300))
	s.pass(3)
	s.xid("31", 1, time.Time{}, 0)
	first := one(t, s.pass(1))
	s.xid("31", 4, time.Time{}, 0)
	if opened := s.pass(1); len(opened) > 0 {
		t.Errorf("an incident is new: %+v", opened[0])
	}
	again := s.news[len(s.news)-1].Repeated
	expect.That(t, len(again) == 1 && again[0].ID == first.ID && again[0].Times == 3 && again[0].Count == 4,
		"what happened again is %+v", again)
	held.Holders[0].UID = "uid-new"
	s.Free("a")
	s.pass(2)
	anew := s.Hold("a", "a")
	anew.Holders[0].UID = "uid-new"
	s.pass(2)
	s.xid("31", 4, time.Time{}, 0)
	s.pass(1)
	s.xid("31", 5, time.Time{}, 0)
	i := one(t, s.pass(1))
	uids := map[bool][]string{}
	for _, h := range i.Holders {
		uids[h.Hit] = append(uids[h.Hit], h.PodUID)
	}
	if diff := cmp.Diff([]string{"uid-new"}, uids[true]); diff != "" {
		t.Errorf("UIDs that were hit:\n%s", diff)
	}
}

// The UIDs of a claim and its pod become known between two errors: they are one incident, which has
// them. A claim that comes again under that name has another one, while its UID is unknown, too.
func TestUIDsBecomeKnown(t *testing.T) {
	s := newStory(t)
	hold := s.Hold("a", "a")
	hold.ClaimUID, hold.Holders[0].UID = "", ""
	s.xid("31", 0, time.Time{}, 0)
	s.pass(5)
	s.xid("31", 1, time.Time{}, 0)
	s.pass(2)
	hold.ClaimUID, hold.Holders[0].UID = "uid-1", "pod-1"
	s.pass(2)
	s.xid("31", 2, time.Time{}, 0)
	s.pass(2)
	i := one(t, s.Incidents())
	h := i.Holders[0]
	expect.That(t, i.Count == 2 && h.ClaimUID == "uid-1" && h.PodUID == "pod-1", "%d times, of %+v", i.Count, h)
}

// An ended incident recurs for a claim of the same name whose UID is not known yet: that is another
// incident.
func TestUIDIsNotKnownYet(t *testing.T) {
	s := newStory(t)
	ill := func() {
		s.Read(jointest.Watts(300), health("unhealthy"))
		s.pass(5)
		s.Read(jointest.Watts(300), health("healthy"))
		s.pass(60)
	}
	s.Hold("a", "a").ClaimUID = "uid-1"
	s.Read(jointest.Watts(300), health("healthy"))
	s.pass(5)
	ill()
	ill()
	if i := one(t, s.Incidents()); i.Count != 2 {
		t.Errorf("it happened %d times to one claim", i.Count)
	}
	s.Free("a")
	s.pass(5)
	s.Hold("a", "a").ClaimUID = ""
	ill()
	if all := s.Incidents(); len(all) != 2 {
		t.Errorf("%d incidents of two claims: %+v", len(all), all[0])
	}
}
