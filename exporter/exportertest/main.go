package exportertest

import (
	"flag"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// Main runs a package's tests and checks that no goroutine is left. With -short each property has
// five cases, since those of whole histories take long: make test-deep runs them all. With the race
// detector it has one: they have one goroutine.
func Main(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); testing.Short() && checks.Value.String() == checks.DefValue {
		few := "25" // rapid runs a fifth of them with -short
		if testmain.RaceEnabled {
			few = "5"
		}
		if err := checks.Value.Set(few); err != nil {
			panic(err)
		}
	}
	testmain.Main(m)
}
