// Package exposition writes snapshots of the ledger as metrics.
//
// [Families] describes every metric family that is made from snapshots; [Reference] makes a
// document of them. A walk over a snapshot (emit.go) passes each series to a sink: [Limiter]
// counts the series and decides which are exported, and [Renderer] writes them in the formats of
// Prometheus (format.go): text, OpenMetrics and protobuf. The labels of a series are rendered once
// and kept from scrape to scrape (labels.go), identified by pointers that stay the same from
// snapshot to snapshot.
//
// Bounds (max…) are for what users send.
package exposition
