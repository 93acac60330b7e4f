package exportertest

import (
	"math"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// Retention is that of all ledgers of this package.
const Retention = 5 * time.Minute

// FitAfter is how long a claim is measured before there is advice in those ledgers.
const FitAfter = time.Minute

// LedgerConfig is that of all ledgers of this package.
func LedgerConfig() ledger.Config {
	return ledger.Config{
		Retention: Retention, IdleThreshold: 0.01, NetworkThreshold: 1e4,
		Advise: true, Fit: fit.Config{After: FitAfter, Margin: 0.05, IdleThreshold: 0.01, Partial: true},
	}
}

// Steps is the largest number of steps of a random history.
const Steps = 30

// Replay runs a random history through a ledger and calls check after each tick.
func Replay(t *rapid.T, check func(w *World, r join.Result, s *exposition.Snapshot)) {
	w := NewWorld(t)
	l := ledger.New(LedgerConfig())
	for range rapid.IntRange(3, Steps).Draw(t, "steps") {
		w.Step(Pauses())
		r := join.Join(w.Input())
		check(w, r, Whole(l.Advance(r, w.Now)))
	}
}

// Whole returns all of a snapshot, without a limit.
func Whole(s *ledger.Snapshot) *exposition.Snapshot {
	return exposition.NewLimiter(0, nil).Apply(nil, s)
}

// Close reports whether two sums are equal to 1e-9 of the larger, or of the size of what they are
// made of.
func Close(a, b, size float64) bool {
	return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), size)
}

// Twins runs a history through two ledgers, the second with a changed input, and calls check with
// both texts, which are what Prometheus asks of an answer, as [Scrape] checks.
func Twins(t *rapid.T, change func(w *World, in *join.Input), check func(plain, changed join.Result, texts [2]string)) {
	w := NewWorld(t)
	ledgers := [2]*ledger.Ledger{ledger.New(LedgerConfig()), ledger.New(LedgerConfig())}
	for range rapid.IntRange(3, Steps).Draw(t, "steps") {
		w.Step(Pauses())
		var results [2]join.Result
		var texts [2]string
		for i, l := range ledgers {
			in := w.Input()
			if i == 1 {
				change(w, &in)
			}
			results[i] = join.Join(in)
			texts[i] = Text(t, Whole(l.Advance(results[i], w.Now)))
			if i == 0 || texts[i] != texts[0] {
				read(t, texts[i])
			}
		}
		check(results[0], results[1], texts)
	}
}

// SameText fails the test at the first line that differs.
func SameText(t *rapid.T, a, b string) {
	t.Helper()
	if a == b {
		return
	}
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] {
			t.Fatalf("line %d is\n%s\nthen\n%s", i, as[i], bs[i])
		}
	}
	t.Fatalf("%d lines became %d", len(as), len(bs))
}
