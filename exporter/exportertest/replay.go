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
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Retention is the retention of all ledgers of this package.
const Retention = 5 * time.Minute

// FitAfter is the time for which these ledgers measure a claim before they give advice.
const FitAfter = time.Minute

// LedgerConfig returns the configuration of all ledgers of this package.
func LedgerConfig() ledger.Config {
	return ledger.Config{
		Retention: Retention, IdleThreshold: 0.01, NetworkThreshold: 1e4,
		Advise: true, Fit: fit.Config{After: FitAfter, Margin: 0.05, IdleThreshold: 0.01},
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

// Whole returns a snapshot without a limit on series.
func Whole(s *book.Snapshot) *exposition.Snapshot {
	return exposition.NewLimiter(0, nil).Apply(nil, s)
}

// Close reports whether two sums differ by at most 1e-9 of the larger one, or of the size of their
// terms.
func Close(a, b, size float64) bool {
	return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), size)
}

// Twins runs a history through two ledgers, the second one with a changed input, and calls check
// with both expositions, which [Scrape] has checked.
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

// SameText fails the test if two texts differ, and shows the first such line.
func SameText(t *rapid.T, a, b string) {
	t.Helper()
	if a == b {
		return
	}
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		must.That(t, as[i] == bs[i], "line %d is\n%s\nthen\n%s", i, as[i], bs[i])
	}
	t.Fatalf("%d lines became %d", len(as), len(bs))
}
