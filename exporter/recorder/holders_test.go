package recorder_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// claimsOf returns the claims of the holders of an incident.
func claimsOf(i *recorder.Incident) []string {
	var out []string
	for _, h := range i.Holders {
		out = append(out, h.Claim)
	}
	return slices.Compact(out)
}

// Holders that ended before an error are none of its incident. One that ended in the interval
// before it is, since the end is known to an interval only; and so is one that ended after it, when
// the error is read late: it is the one that was hit.
func TestHoldersThatEnded(t *testing.T) {
	for _, test := range []struct {
		name      string
		end, read int           // the ticks from which it is not held, and at which the error is read
		at        time.Duration // of the error; 0: when it is read
		want, hit []string
	}{
		{name: "long ago", end: 10, read: 30, want: []string{"later"}, hit: []string{"team/later"}},
		{name: "two intervals ago", end: 10, read: 11, want: []string{"later"}, hit: []string{"team/later"}},
		{name: "one interval ago", end: 10, read: 10, want: []string{"ended", "later"}, hit: []string{"team/later"}},
		{
			name: "after the error", end: 10, read: 20, at: 8500 * time.Millisecond, want: []string{"ended", "later"},
			hit: []string{"team/ended"},
		},
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
			if !i.Time.Equal(at) {
				t.Errorf("the error happened at %v, want %v", i.Time, at)
			}
			if diff := cmp.Diff(test.want, claimsOf(i)); diff != "" {
				t.Errorf("claims of the holders (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.hit, i.Claims()); diff != "" {
				t.Errorf("claims that were hit (-want +got):\n%s", diff)
			}
		})
	}
}

// The same error that hits a pod that was made again under the same name is another incident. What
// happens again is told with how often.
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
	if len(again) != 1 || again[0].ID != first.ID || again[0].Times != 3 || again[0].Count != 4 {
		t.Errorf("what happened again is %+v", again)
	}
	held.Holders[0].UID = "uid-new"
	s.Free("a")
	s.pass(2)
	anew := s.Hold("a", "a")
	anew.Holders[0].UID = "uid-new"
	s.pass(2)
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
