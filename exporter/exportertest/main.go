package exportertest

import (
	"flag"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// Main runs a package's tests and checks that no goroutine is left. Under the race detector, which
// makes property tests many times slower, it runs fewer cases of them: any history shows a race.
func Main(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); testmain.RaceEnabled && checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("20"); err != nil {
			panic(err)
		}
	}
	testmain.Main(m)
}
