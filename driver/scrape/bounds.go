package scrape

// Bounds of the responses of all endpoints together. For comparison: 64 GPUs with 60 metrics have 4
// 000 series; node_exporter has 8 series per network interface.
const (
	allSeries = 1 << 15 // mapped series
	allText   = 1 << 20 // bytes of their label values
)

// minShares is the minimum number of parts into which the bounds are divided among endpoints.
const minShares = 2

// bounds has the bounds of one response. What exceeds them is rejected and counted.
type bounds struct{ series, text int }

// bounds returns the bounds of the endpoint: an equal part of the bounds of all endpoints.
func (e *Endpoint) bounds() bounds {
	n := max(e.endpoints, minShares)
	return bounds{series: allSeries / n, text: allText / n}
}
