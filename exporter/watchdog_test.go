package exporter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// standingInventory is an inventory that stands from the second call on, until it is released.
type standingInventory struct {
	*fakeNode
	calls   *int
	release chan struct{}
}

func (i standingInventory) Describe() (podresources.View, driver.Inventory) {
	if *i.calls++; *i.calls > 1 {
		<-i.release
	}
	return i.fakeNode.Describe()
}

// While a tick does not return, the probes fail after MaxAge, not before, with its part, and succeed
// when it continues.
func TestStandingTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inventory := standingInventory{newFakeNode(answering), new(int), make(chan struct{})}
		config := SamplerConfig{Owners: inventory, Sources: []driver.Source{goodSource("good")}, Inventory: inventory}
		runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
			check := func(after time.Duration, want string) {
				t.Helper()
				time.Sleep(after)
				got := ""
				if err := s.Health(); err != nil {
					got = err.Error()
				}
				expect.Is(t, got, want, "health")
			}
			check(time.Minute-time.Millisecond, "")
			check(2*time.Millisecond, "no snapshot for 1m0s: describing the inventory has not returned for 59s")
			close(inventory.release)
			check(2*time.Second, "")
		})
	})
}

// Before the first snapshot the probes fail as late as after it, and with a long interval not
// before three of them have passed.
func TestHealthBeforeTheFirstSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 1
		inventory := standingInventory{newFakeNode(answering), &calls, make(chan struct{})}
		config := SamplerConfig{Owners: inventory, Inventory: inventory}
		runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
			time.Sleep(time.Minute - time.Millisecond)
			expect.OK(t, s.Health())
			time.Sleep(2 * time.Millisecond)
			expect.That(t, s.Health() != nil, "healthy without a snapshot after a minute")
			close(inventory.release)
		})
		slow := Sampler{SamplerConfig: SamplerConfig{Interval: 21 * time.Second, MaxAge: time.Minute, Now: time.Now}}
		if err := slow.Health(); err != nil {
			t.Errorf("of a sampler that was not started: %v", err)
		}
		slow.progress.finish(time.Now())
		for _, healthy := range []bool{true, false} {
			time.Sleep(minTicks*slow.Interval - time.Second)
			if err := slow.Health(); (err == nil) != healthy {
				t.Errorf("health %v, want healthy: %v", err, healthy)
			}
		}
	})
}

// The longest tick is that of the last ten minutes.
func TestLongestTick(t *testing.T) {
	var l longest
	now := time.Unix(1e9, 0)
	for _, step := range []struct {
		pass, took, want time.Duration
	}{
		{0, 3 * time.Second, 3 * time.Second},
		{time.Second, time.Second, 3 * time.Second},
		{5 * time.Minute, 2 * time.Second, 3 * time.Second},
		{5 * time.Minute, time.Second, 2 * time.Second},
		{4 * time.Minute, time.Millisecond, 2 * time.Second},
		{2 * time.Minute, time.Millisecond, time.Second},
		{time.Hour, time.Millisecond, time.Millisecond},
	} {
		now = now.Add(step.pass)
		expect.Is(t, l.add(step.took, now), step.want, "%v later the longest", step.pass)
	}
}
