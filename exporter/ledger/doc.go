// Package ledger keeps what accumulates on a node: who held each device when, and what each counter
// amounts to for the device, for every claim and pod that held it, and unattributed. It is the only
// state behind the metrics.
//
// [Ledger.Advance] takes the join of one tick and returns an immutable [Snapshot]. Inside, each
// device has
//
//   - a timeline: segments of time with the holders' portions (timeline.go). A new answer of the
//     kubelet is compared with the one before, and each change is put where its signs say it was;
//   - a meter for each series that is read (meter.go). A reading waits in it until the kubelet's
//     answers cover its time, and is then distributed over the segments since the reading before
//     (device.go);
//   - a counter for each sum, which starts at 0: of a hardware counter's increments, or of a
//     gauge's integral where the hardware has no counter.
//
// Claims and pods have accounts of what they were charged (account.go), and names with what
// identifies them (names.go), both kept for the retention after their end.
//
// The package asks no clock: time comes with each call, and is compared by the monotonic clock,
// which is never set, and stands while the node is suspended. It knows no names of metrics or
// labels and no limit of series; [Ledger.Evict] lets a limit drop what ended.
package ledger
