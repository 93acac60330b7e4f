//go:build cgo

package dcgm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/dcgm/dcgmtest"
)

// Each condition for which somebody must act appears with what is to be done, alone. An earlier
// engine does not know all of them, and reads the others.
func TestNeedsAttention(t *testing.T) {
	for _, tc := range []struct {
		want   string
		change func(*dcgmtest.Condition)
		early  bool // an earlier engine knows it
	}{
		{"none none", func(*dcgmtest.Condition) {}, true},
		{"reset row_remap_pending", func(c *dcgmtest.Condition) { c.RemapPending = 1 }, true},
		{"rma row_remap_failed", func(c *dcgmtest.Condition) { c.RemapFailed = 1 }, true},
		{"reset page_retirement_pending", func(c *dcgmtest.Condition) { c.RetirementPending = 1 }, true},
		{"rma sram_ecc_threshold", func(c *dcgmtest.Condition) { c.SRAMThreshold = 1 }, true},
		{"rma unrepairable_memory", func(c *dcgmtest.Condition) { c.Unrepairable = 1 }, false},
		{"reset recovery_action", func(c *dcgmtest.Condition) { c.RecoveryAction = 4 }, false},
		{"reboot recovery_action", func(c *dcgmtest.Condition) { c.RecoveryAction = 2 }, false},
	} {
		for _, vocabulary := range []int64{dcgmtest.Vocabulary46, dcgmtest.Vocabulary45, dcgmtest.VocabularyEarly} {
			t.Run(fmt.Sprintf("%s, vocabulary %d", tc.want, vocabulary), func(t *testing.T) {
				want := tc.want
				if vocabulary == dcgmtest.VocabularyEarly && !tc.early {
					want = "none none"
				}
				c := newClock(1)
				machine.Vocabulary = vocabulary
				s := newSource(t, c, nil)
				sample(t, s)
				tc.change(&machine.GPUs[0].Condition)
				c.advance(newer.interval().Seconds())
				if got := attention(sample(t, s)[0]); !slices.Equal(got, []string{want}) {
					t.Errorf("%q, want %q", got, want)
				}
			})
		}
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
