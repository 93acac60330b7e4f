// Package exposition writes snapshots of the ledger as metrics.
//
// [Families] describes every metric family that is made of snapshots; [WriteReference] writes them
// as a document. A walk of a snapshot (emit.go) yields its series one by one to a sink: [Limiter]
// counts them and decides which are exported, and [Renderer] writes them in the formats of
// Prometheus (format.go): text, OpenMetrics and protobuf. The labels of a series are rendered once
// and kept from scrape to scrape (labels.go), by the pointers that the ledger keeps from snapshot
// to snapshot.
package exposition
