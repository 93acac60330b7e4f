package exporter

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets the race detector see fewer histories of the property tests: it makes them many times slower, and what it
// looks for is in each. make test runs them in full without it.
func TestMain(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); raceEnabled && checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("20"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
