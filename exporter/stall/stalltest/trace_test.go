package stalltest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

const day = 24 * time.Hour

func all() []stalltest.Kind { return append(stalltest.Healthy(), stalltest.Hung()...) }

// Kinds tell the truth: a healthy one never hangs, a hung one does from some second to the end of
// the day.
func TestKinds(t *testing.T) {
	names := map[string]bool{}
	for _, k := range all() {
		hung, ends := 0, false
		for s := range k.Trace(1, day).Samples {
			if s.Truth == stalltest.Hangs {
				hung++
			} else if hung > 0 {
				ends = true
			}
		}
		hangs := strings.HasPrefix(k.Name, "hang-")
		expect.That(t, !names[k.Name] && k.Why != "" && k.Source != "" && !ends && (hung > 0) == hangs &&
			(!hangs || hung >= int(day.Seconds())/8), "%s hangs for %d s, and ends: %v", k.Name, hung, ends)
		names[k.Name] = true
	}
}

func phaseMeans(t *testing.T, kind, phase string) stalltest.Values {
	t.Helper()
	for _, k := range all() {
		if k.Name == kind {
			return means(k.Trace(5, 2*time.Hour), func(s *stalltest.Sample) bool { return s.Phase == phase })
		}
	}
	t.Fatalf("no kind %s", kind)
	return stalltest.Values{}
}

// means returns the means of the chosen samples: of counters, what a second adds. The first and the
// last of a row of chosen samples are left out: they may be of two phases.
func means(trace stalltest.Trace, choose func(*stalltest.Sample) bool) stalltest.Values {
	var sum, pending, last stalltest.Values
	n, chosen := 0.0, 0
	for s := range trace.Samples {
		switch {
		case !choose(s):
			chosen = 0
		case chosen < 2:
			chosen++
		default:
			n++
			for f := range sum {
				sum[f] += pending[f]
			}
		}
		pending = s.Values
		for f := range pending {
			if stalltest.Field(f).IsCounter() {
				pending[f] -= last[f]
			}
		}
		last = s.Values
	}
	for f := range sum {
		sum[f] /= n
	}
	return sum
}
