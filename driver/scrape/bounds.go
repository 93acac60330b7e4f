package scrape

// What the answers of all endpoints together may hold. Sizes that are used: 64 GPUs of 60 metrics
// are 4 000 series; node_exporter has 8 for each of a node's interfaces.
const (
	allSeries     = 1 << 15 // mapped series
	allIdentities = 1 << 13 // values of the label that names the hardware
	allText       = 1 << 20 // bytes of those and of other labels' values
)

// maxShare is the largest share of one endpoint: 1/maxShare, so that one that is broken leaves as
// much to the others.
const maxShare = 2

// bounds limits what one answer may hold. What is beyond is rejected and counted.
type bounds struct{ series, identities, text int }

// bounds returns the bounds of the endpoint: an equal part of what all may hold. They depend on the
// configuration alone, so that no endpoint can take away what another one needs.
func (e *Endpoint) bounds() bounds {
	n := max(e.endpoints, maxShare)
	return bounds{series: allSeries / n, identities: allIdentities / n, text: allText / n}
}
