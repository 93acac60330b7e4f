package exportertest_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
)

func TestStepped(t *testing.T) {
	for _, by := range []time.Duration{0, time.Hour, -time.Hour, -10 * time.Minute} {
		now := time.Now()
		stepped := exportertest.Stepped(now, by)
		if passed, set := stepped.Sub(now), stepped.Round(0).Sub(now.Round(0)); passed != 0 || set != by {
			t.Errorf("%v: %v have passed, and the wall clock was set by %v", by, passed, set)
		}
	}
}
