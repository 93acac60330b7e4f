package live

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The answer is one of Prometheus 3.15.
func TestHistogram(t *testing.T) {
	const answer = `[1780000000.5, {"count": "4", "sum": "402.5", "buckets": [
		[3, "-0.0009765625", "0.0009765625", "1"], [0, "98.70149282610239", "107.63474115247546", "3"]]}]`
	var got Histogram
	must.Do(t, json.Unmarshal([]byte(answer), &got))
	want := Histogram{time.UnixMilli(1780000000500), 4, 402.5, []Bucket{
		{-1. / 1024, 1. / 1024, 1},
		{98.70149282610239, 107.63474115247546, 3},
	}}
	expect.Equal(t, "", want, got)
	for _, broken := range []string{
		`[1, {"count": "x", "sum": "1"}]`, `[1, {"count": "1", "sum": "1", "buckets": [[0, "1"]]}]`, `[1, "2"]`,
	} {
		expect.That(t, json.Unmarshal([]byte(broken), &got) != nil, "no error for %s", broken)
	}
}
