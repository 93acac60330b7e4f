package recorder_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// health is a reading of the health.
func health(status string) driver.Reading {
	return driver.Reading{Quantity: driver.Health, Labels: driver.Labels{status}, Value: 1}
}

// link reads gpu-0, whose link has gone down so many times.
func (s *story) link(down float64, more ...driver.Reading) {
	s.Read(append(more, jointest.Watts(300), driver.Reading{
		Quantity: driver.Errors, Labels: driver.Labels{"link_down"}, Value: down, Since: jointest.Start().Add(1),
	})...)
}

// An incident of an error is over when the error has not happened for ten minutes and the device is
// readable and healthy, and not before.
func TestErrorEnds(t *testing.T) {
	s := newStory(t)
	s.Hold("a", "a")
	s.link(0, health("healthy"))
	s.pass(3)
	s.link(1, health("healthy"))
	first := one(t, s.pass(1))
	s.pass(300)
	s.link(2, health("healthy"))
	s.pass(1)
	last := one(t, s.Incidents()).Last
	s.pass(595)
	if i := one(t, s.Incidents()); !i.Open() || i.Count != 2 || !i.Onset.Equal(first.Onset) {
		t.Fatalf("less than ten minutes after the second time it is %+v", i)
	}
	s.link(2, health("unhealthy"))
	unhealthy := one(t, s.pass(20))
	ended := func() []*recorder.Incident {
		return slices.DeleteFunc(s.Incidents(), (*recorder.Incident).Open)
	}
	if all := ended(); len(all) > 0 {
		t.Errorf("while the device is unhealthy these have ended: %+v", all[0])
	}
	s.link(2, health("healthy"))
	s.pass(1)
	for _, i := range ended() {
		want := map[string]recorder.Resolution{first.ID: recorder.Quiet, unhealthy.ID: recorder.Healthy}[i.ID]
		expect.That(t, i.Resolution == want && i.End.Sub(last) >= 600*time.Second && !i.End.After(s.Now),
			"%s ended at %v as %s, want %s", i.Text, i.End.Sub(last), i.Resolution, want)
	}
	expect.Is(t, len(ended()), 2, "of 2 incidents have ended")
}

// Readers have the incidents that are open first, then those that happened last.
func TestOrder(t *testing.T) {
	s := newStory(t)
	s.Hold("a", "a")
	s.link(0, health("healthy"))
	s.pass(3)
	s.link(1, health("healthy"))
	s.pass(5)
	s.link(1, health("unhealthy"))
	s.pass(5)
	s.link(1, health("healthy"))
	s.pass(5)
	var got []recorder.Kind
	for _, i := range s.Incidents() {
		got = append(got, i.Kind)
	}
	expect.Equal(t, "", []recorder.Kind{recorder.LinkDown, recorder.Unhealthy}, got)
	s.link(1, health("unhealthy"))
	s.pass(1)
	if i := s.Incidents()[0]; i.Kind != recorder.Unhealthy || i.Count != 2 || !i.Open() {
		t.Errorf("what happened again is not first: %+v", i)
	}
}

// several has the devices gpu-0 to gpu-2 of one source. Claim a holds the first.
func several(t *testing.T) *story {
	s := newStory(t)
	s.Hold("a", "a")
	for _, uuid := range []string{"gpu-1", "gpu-2"} {
		s.In.Inventory[jointest.ID(uuid)] = driver.Entry{Hardware: driver.Hardware{UUID: uuid}}
		s.ReadOf(uuid, jointest.Watts(100))
	}
	s.Read(jointest.Watts(300))
	s.pass(5)
	return s
}

// A source that fails is one incident of the source. It hits no holder, and ends when the source
// answers again. None of its devices is lost.
func TestSourceFails(t *testing.T) {
	for name, fail := range map[string]driver.Reason{
		"with an error": driver.ReasonServerError, "with an empty answer": "",
	} {
		t.Run(name, func(t *testing.T) {
			s := several(t)
			source := &s.In.Sources[0]
			samples := source.Samples
			source.Samples, source.Failed = nil, fail
			began := s.Now
			i := one(t, s.pass(3))
			expect.That(t, i.Kind == recorder.SourceDown && i.Source == "a" && i.Onset.Equal(began) && len(i.Holders) == 0,
				"the incident is %+v", i)
			source.Samples, source.Failed = samples, ""
			back := s.Now
			if more := s.pass(3); len(more) > 0 {
				t.Errorf("an incident after the end of the outage: %+v", more[0])
			}
			if i := one(t, s.Incidents()); i.Open() || i.Resolution != recorder.Back || !i.End.Equal(back) {
				t.Errorf("at its end the incident is %+v", i)
			}
			source.Samples, source.Failed = nil, driver.ReasonTimeout
			s.pass(3)
			if i := one(t, s.Incidents()); !i.Open() || i.Count != 2 {
				t.Errorf("the second outage is no other occurrence: %+v", i)
			}
		})
	}
}

// A device that can't be read is lost if there is further evidence, since the time at which it
// became unreadable; without evidence it is not.
func TestLossNeedsWitness(t *testing.T) {
	without := func(s *story) { // the source answers without the device
		s.In.Sources[0].Samples = slices.DeleteFunc(
			slices.Clone(s.In.Sources[0].Samples), func(of driver.Sample) bool { return of.Hardware.UUID == "gpu-0" },
		)
	}
	unreadable := func(s *story) {
		s.Read()
		s.In.Sources[0].Samples[2].Unreadable = true
	}
	down := func(s *story) { s.In.Sources[0].Samples, s.In.Sources[0].Failed = nil, driver.ReasonTimeout }
	for _, test := range []struct {
		name    string
		change  func(*story)
		witness func(*story) // five seconds later
		want    string       // the code; "": it is not lost
	}{
		{name: "the source answers without it", change: without, want: "absent"},
		{name: "the source can't read it", change: unreadable, want: "unreadable"},
		{
			name: "its driver says so", want: "gpu_lost",
			change: func(s *story) { unreadable(s); s.In.Sources[0].Failed = driver.ReasonGPULost },
		},
		{name: "the source fails", change: down},
		{
			name: "the source answers without it, and with what is no number of another device", want: "absent",
			change: func(s *story) { without(s); s.In.Sources[0].Failed = driver.ReasonMalformed },
		},
		{
			name: "the source answers with what is no number of it, and with values of others",
			change: func(s *story) {
				s.Read(driver.Reading{Quantity: driver.Power, Value: driver.Malformed()})
				s.In.Sources[0].Failed = driver.ReasonMalformed
			},
		},
		{
			name:   "the source answers with nothing but what is no number",
			change: func(s *story) { s.In.Sources[0].Samples, s.In.Sources[0].Failed = nil, driver.ReasonMalformed },
		},
		{
			name: "the source fails, and then answers without it", change: down, want: "absent", witness: func(s *story) {
				s.ReadOf("gpu-1", jointest.Watts(1))
				s.ReadOf("gpu-2", jointest.Watts(1))
				s.In.Sources[0].Failed = ""
			},
		},
		{
			name: "the source fails, and the driver's log has XID 79", change: down, want: "xid_79", witness: func(s *story) {
				s.In.Sources[1].Samples = []driver.Sample{{
					Hardware: driver.Hardware{UUID: "gpu-0"}, FromLog: true, Readings: []driver.Reading{{
						Quantity: driver.Errors, Labels: driver.Labels{"xid", "79"}, Value: 1, At: s.Now, Since: jointest.Start().Add(1),
					}},
				}}
			},
		},
		{
			name: "the source fails, and the inventory drops it", change: down, want: "unlisted", witness: func(s *story) {
				s.In.Inventory = driver.Inventory{jointest.ID("gpu-1"): s.In.Inventory[jointest.ID("gpu-1")]}
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := several(t)
			s.In.Sources = append(s.In.Sources, exportertest.NewHistory(t).In.Sources[0])
			s.In.Sources[1].Name = "log"
			test.change(s)
			began := s.Now
			s.pass(5)
			if test.witness != nil {
				test.witness(s)
			}
			s.pass(5)
			all := slices.DeleteFunc(s.Incidents(), func(i *recorder.Incident) bool { return i.Kind != recorder.DeviceLost })
			if test.want == "" {
				if len(all) > 0 {
					t.Errorf("it is lost: %+v", all[0])
				}
				return
			}
			i := one(t, all)
			if i.Device.Device != "gpu-0" || i.Code != test.want || !i.Onset.Equal(began) ||
				!slices.Equal(i.Pods(), []string{"team/a"}) {
				t.Errorf("the loss is %+v, want code %s since %v", i, test.want, began)
			}
		})
	}
}

// The recording of an incident exists a second after its detection, is stored within seconds, and
// stays in another process, when it happens again.
func TestRecordingOutlives(t *testing.T) {
	s := newStory(t)
	s.Hold("a", "a")
	s.link(0)
	s.pass(120)
	s.link(1)
	onset := one(t, s.pass(1)).Onset
	stored := map[string]*recorder.Incident{}
	keep := func() {
		for _, news := range s.news {
			for _, i := range news.Changed {
				stored[i.ID] = i
			}
		}
		s.news = nil
	}
	reaches := func(i *recorder.Incident, at time.Time) bool {
		return i.Chart != nil && slices.ContainsFunc(i.Chart.Times, func(t time.Time) bool {
			return t.Sub(at).Abs() <= time.Second
		})
	}
	keep()
	s.pass(6)
	keep()
	id := s.Incidents()[0].ID
	if i := stored[id]; !reaches(i, onset.Add(-58*time.Second)) || !reaches(i, onset) {
		t.Fatalf("after 6 s the minute before is not stored: %+v", i)
	}
	// The process is killed, and another one continues.
	s.Recorder = recorder.New(recorder.Config{Interval: time.Second})
	s.Restore([]*recorder.Incident{stored[id]})
	s.pass(900 / 2)
	s.link(2)
	s.pass(1)
	s.pass(900)
	keep()
	i := stored[id]
	expect.That(t, i.Count == 2 && !i.Open() && len(s.Incidents()) == 1,
		"of %d incidents the first is %+v", len(s.Incidents()), i)
	for name, at := range map[string]time.Time{"the minute before": onset.Add(-58 * time.Second), "the onset": onset} {
		expect.That(t, reaches(i, at), "the recording lacks %s", name)
	}
}

// An incident that recurs each minute is stored each minute.
func TestRepeatedIsStored(t *testing.T) {
	s := newStory(t)
	s.Hold("a", "a")
	s.link(0)
	s.pass(120)
	for n := range 10 {
		s.link(float64(n + 1))
		s.pass(60)
	}
	s.news = nil
	for n := range 5 {
		s.link(float64(n + 11))
		s.pass(60)
	}
	var counts []int
	for _, news := range s.news {
		for _, i := range news.Changed {
			counts = append(counts, i.Count)
		}
	}
	expect.That(t, len(counts) >= 4 && len(counts) <= 6 && counts[len(counts)-1] == 15,
		"in five minutes it is stored with the counts %v", counts)
}

// An error from before the exporter's start is not an incident, although its source reports its
// time.
func TestErrorBeforeStart(t *testing.T) {
	s := newStory(t)
	s.Hold("a", "a")
	s.xid("31", 1, s.Now.Add(-time.Minute), 0)
	if got := s.pass(10); len(got) > 0 {
		t.Errorf("an incident at the start: %+v", got[0])
	}
	at := s.Now.Add(-300 * time.Millisecond)
	s.xid("31", 2, at, 0)
	i := one(t, s.pass(1))
	expect.That(t, i.Onset.Equal(at) && slices.Equal(i.Pods(), []string{"team/a"}),
		"the incident began at %v and hit %v, want %v and team/a", i.Onset, i.Pods(), at)
}
