// Package exporter runs the exporter's tick. A [Sampler] reads all sources side by side and asks
// the kubelet for the holders. It joins both (package join), records the result in the ledger
// (package ledger), and lets the limiter (package exposition) choose what is exported. Pages and
// scrapes read the latest snapshot (packages web and exposition). [SelfMetrics] are the exporter's
// metrics about itself.
//
// Knowledge about the node comes through the interfaces [Owners] and [Inventory], which package
// node implements.
//
// Bounds (max…) are for what the kubelet and pods send.
package exporter
