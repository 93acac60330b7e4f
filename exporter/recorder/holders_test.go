package recorder_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

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
