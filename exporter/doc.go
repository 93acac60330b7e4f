// Package exporter runs the exporter's tick. A [Sampler] reads all sources side by side and asks
// who holds what; joins both (package join); takes the result into the ledger (package ledger); and
// asks the limiter (package exposition) what of the new snapshot is exported. Pages and scrapes
// read the latest snapshot (packages web and exposition). [SelfMetrics] are the exporter's metrics
// about itself.
//
// What is known of the node comes through the interfaces [Owners] and [Inventory], which package
// node implements.
package exporter
