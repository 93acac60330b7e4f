// Package ledger keeps what accumulates on a node: who held each device when, and what each counter
// amounts to for the device, for every claim and pod that held it, and unattributed. It is the only
// state behind the metrics.
//
// [Ledger.Advance] takes the join of one tick and returns an immutable [Snapshot]. Each device has
//
//   - a timeline: segments of time with the holders' portions (timeline.go), made of the holds of
//     the view (follow.go). What is decided, up to the time until which it is known who holds what,
//     stays; what follows is made again when a hold begins or ends. What is known too late takes
//     effect from the decided time on, and is counted ([Snapshot.Corrections]);
//   - a meter for each series that is read (meter.go). A reading waits in it until the view covers
//     its time, and is then distributed over the segments since the reading before
//     (settle.go);
//   - a counter for each sum (meter.go), which starts at 0: of a hardware counter's increments,
//     or of a gauge's integral where the hardware has no counter.
//
// Claims and pods have accounts of what they were charged (account.go), each UID its own
// (owners.go); the counters of a name go on from one account to the next (book.go). [Timeline]
// says who held what when (periods.go). Names have what identifies who has them (names.go).
// Accounts and names are kept for the retention after their end.
//
// The files call each other in one direction. test/layout has them in order, with what each knows.
//
// A partition mostly does not measure power and energy: its parent does. The holders of partitions
// have parts of the parent's (partition.go, [join.DivideParent]), and conservation holds over the
// parent and its parts together: what the parent counts is what its own holders and those of its
// parts are charged, and its unattributed. Between two readings of the parent, the pieces of time
// between changes of holders are divided one by one. Of each
//
//   - the idle part is the idle power × time. The idle power is the lowest power above 0 that was
//     read while the utilization of the parts that were held was known, and no utilization that was
//     known, the parent's included, exceeded the idle threshold. Where no power is read it is the
//     lowest rate of the counter in such a time. Until one was seen it is 0: all counts as active.
//   - the activity of a part is its mean utilization in that time. It is taken to change evenly
//     between two readings, and is unknown after the last reading of a part that can't be read any
//     more.
//   - those who hold the parent itself divide what the holders of its parts do not have.
//
// The device of a partition has no power and energy, so that the sum over a node counts each joule
// once. A partition of which a source reads one of them has no part of the parent's.
//
// The package asks no clock: time comes with each call, and is compared by the monotonic clock,
// which is never set, and stands while the node is suspended. It knows no names of metrics or
// labels and no limit of series; [Ledger.Evict] lets a limit drop what ended.
package ledger
