//go:build cgo

package nvml

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
)

// Each condition for which somebody must act appears with what is to be done, alone, and goes.
func TestNeedsAttention(t *testing.T) {
	for _, tc := range []struct {
		want   string
		change func(*nvmltest.Condition)
		since  int // the first branch of drivers that reports it
	}{
		{"none none", func(*nvmltest.Condition) {}, 535},
		{"reset row_remap_pending", func(c *nvmltest.Condition) { c.RemapPending = 1 }, 535},
		{"rma row_remap_failed", func(c *nvmltest.Condition) { c.RemapFailed = 1 }, 535},
		{"reset page_retirement_pending", func(c *nvmltest.Condition) { c.RetirementPending = 1 }, 535},
		{"reset channel_repair_pending", func(c *nvmltest.Condition) { c.ChannelRepair = 1 }, 535},
		{"reset tpc_repair_pending", func(c *nvmltest.Condition) { c.TPCRepair = 1 }, 535},
		{"rma sram_ecc_threshold", func(c *nvmltest.Condition) { c.SRAMThreshold = 1 }, 535},
		{"rma unrepairable_memory", func(c *nvmltest.Condition) { c.Unrepairable = 1 }, 535},
		{"reset recovery_action", func(c *nvmltest.Condition) { c.RecoveryAction = 1 }, 570},
		{"reboot recovery_action", func(c *nvmltest.Condition) { c.RecoveryAction = 2 }, 570},
		{"drain recovery_action", func(c *nvmltest.Condition) { c.RecoveryAction = 3 }, 570},
	} {
		t.Run(tc.want, func(t *testing.T) {
			for _, version := range []string{"535.183.01", "550.163.01", "570.86.15", "580.65.06", "590.44.01"} {
				want := tc.want
				if branch(version) < tc.since {
					want = "none none"
				}
				c := newClock()
				machine.Reset(1)
				machine.SetDriver(version)
				s := newSource(t, c, nil)
				sample(t, s)
				tc.change(&machine.GPUs[0].Condition)
				c.advance(rareInterval.Seconds())
				if got := attention(sample(t, s)[0]); !slices.Equal(got, []string{want}) {
					t.Errorf("%s: %q, want %q", version, got, want)
				}
				machine.GPUs[0].Condition = nvmltest.Condition{}
				c.advance(rareInterval.Seconds())
				if got := attention(sample(t, s)[0]); !slices.Equal(got, []string{"none none"}) {
					t.Errorf("%s, when it is over: %q", version, got)
				}
			}
		})
	}
}

// attention lists what a sample says that somebody must do.
func attention(s driver.Sample) []string {
	var out []string
	for _, r := range s.Readings {
		if r.Quantity == driver.NeedsAttention && r.Value == 1 {
			out = append(out, strings.Join(r.Labels[:], " "))
		}
	}
	return out
}

// A GPU of which nothing of this can be read is not said to be well.
func TestNeedsAttentionUnknown(t *testing.T) {
	machine.Reset(1)
	machine.GPUs[0].Condition = nvmltest.Condition{
		RemapPending: nan(), RemapFailed: nan(), RetirementPending: nan(), ChannelRepair: nan(), SRAMThreshold: nan(),
		Unrepairable: nan(), RecoveryAction: nan(), LifetimeCorrected: nan(), LifetimeUncorrected: nan(),
	}
	got := values(sample(t, newSource(t, newClock(), nil))[0])
	maps.DeleteFunc(got, func(name string, _ float64) bool { return !strings.HasPrefix(name, "needs_attention") })
	if diff := cmp.Diff(map[string]float64{}, got); diff != "" {
		t.Errorf("readings (-want +got):\n%s", diff)
	}
}

// What changes seldom is asked for once a minute.
func TestRareQueries(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	s := newSource(t, c, nil)
	for range 60 {
		sample(t, s)
		c.advance(1)
	}
	for _, q := range conditionQueries() {
		if n := machine.Calls(q.function); q.every == rareInterval && n != 1 {
			t.Errorf("%s was called %d times in a minute", q.function, n)
		}
	}
}
