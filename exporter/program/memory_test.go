package program

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// use is how much of the full budget a part of the program may use, in bytes.
type use struct {
	part  string
	bytes int
}

// uses returns the use of maxResident by each part. exporter/README.md describes what is dropped
// above it. With less memory, all parts but the first are reduced by the same factor.
func uses() []use {
	full := podresources.FullBounds()
	return []use{
		{"the program itself", fixed},
		{"an answer of the kubelet, as it is read", full.Answer},
		{"the pods of it that are kept", full.Bytes},
		{"rows, from the join to the page", full.Rows * rowBytes},
		{"who held what in the last ten minutes", ledger.MaxHistory},
		{"the flight recorder", recorder.MaxBytes},
		{"answers to readers", web.MaxAnswers},
		{"slices of the API server", 2 * kube.MaxSliceBytes},
	}
}

// The parts sum to the whole budget, and are equal to the documented ones.
func TestMemoryParts(t *testing.T) {
	documented := must.Get(os.ReadFile("../README.md"))(t)
	sum := 0
	for _, u := range uses() {
		sum += u.bytes
		if row := fmt.Sprintf("| %s | %d MiB", u.part, u.bytes>>20); !bytes.Contains(documented, []byte(row)) {
			t.Errorf("README.md has no row %q", row)
		}
	}
	expect.That(t, sum == maxResident, "the parts are %.1f MiB together, want %d", float64(sum)/(1<<20), maxResident>>20)
}

// With less memory than the budget, all parts but the program itself are reduced by the same
// factor. The heap is limited to what the file pages leave.
func TestMemoryShares(t *testing.T) {
	for name, c := range map[string]struct {
		limit, heap         int64
		rows, ring          int
		series, unlimited   int // with the flag at 50 000, and at 0
		seriesOfFew, answer int // with the flag at 100
	}{
		"no limit": {
			limit: math.MaxInt64, heap: 117021078, rows: 4096, ring: 12 << 20, series: 50_000, seriesOfFew: 100,
			answer: 40 << 20,
		},
		"100 MiB": {
			limit: 100 << 20, heap: 60397974, rows: 1238, ring: 3804136, series: 29719, unlimited: 29719, seriesOfFew: 100,
			answer: 12680453,
		},
		"less than the program": {
			limit: 20 << 20, heap: 20761803, rows: 256, ring: 768 << 10, series: 6144, unlimited: 6144, seriesOfFew: 100,
			answer: 2560 << 10,
		},
	} {
		m := newMemory(c.limit)
		bounds := podresources.FullBounds().Times(m.share)
		if got := m.heap(); got != c.heap {
			t.Errorf("%s: the heap has %d bytes, want %d", name, got, c.heap)
		}
		if bounds.Rows != c.rows || bounds.Answer != c.answer || m.of(recorder.MaxBytes) != c.ring {
			t.Errorf("%s: %d rows, %d bytes of an answer, %d bytes of the recorder, want %d, %d, %d", name,
				bounds.Rows, bounds.Answer, m.of(recorder.MaxBytes), c.rows, c.answer, c.ring)
		}
		for flag, want := range map[int]int{50_000: c.series, 0: c.unlimited, 100: c.seriesOfFew} {
			if got := m.series(flag); got != want {
				t.Errorf("%s: %d series with --max-series=%d, want %d", name, got, flag, want)
			}
		}
	}
}
