// Package ledger keeps what accumulates on a node: who held each device when, and the sum of each
// counter: for the device, for every claim and pod that held it, and unattributed. It is the only
// state behind the metrics.
//
// [Ledger.Advance] takes the join of one tick and returns an immutable [book.Snapshot]. Each device
// has
//
//   - a timeline: segments of time with the holders' parts (package divide), made from the holds of
//     the view (follow.go). Segments are decided up to the time until which the holders are known.
//     Later ones are made again when a hold begins or ends. A change that becomes known too late
//     takes effect from the decided time on, and is counted ([book.Snapshot.Corrections]);
//   - a meter for each series that is read (meter.go). A reading waits in it until the holders at
//     its time are known. Then it is distributed over the segments since the previous reading
//     (settle.go);
//   - a counter for each sum (meter.go), which starts at 0. It is the sum of a hardware counter's
//     increments or, if the hardware has no counter, the integral of a gauge.
//
// Claims and pods have accounts of their charges (account.go), one for each UID. The counters of a
// name continue from one account to the next (accounts.go). Package timeline says who held which
// device when. Names have the identities of claims and pods (name.go). Accounts and names are kept
// for the retention after their end.
//
// Each file uses only what files below it declare: test/layout lists them in order, with what each
// does. What is exported is package book.
//
// Most partitions do not measure power and energy: their parents do. The holders of partitions get
// parts of the parent's values (partition.go, [join.DivideParent]). Conservation holds for a parent
// and its partitions together: the parent's counter is the sum of the charges of its own holders
// and of the partitions' holders, and of its unattributed part. Between two readings of the parent,
// each piece of time between changes of holders is divided by itself:
//
//   - The idle part is the idle power × time. The idle power is the lowest power above 0 that was
//     read while the parent and its partitions were idle: the utilization of all held partitions
//     was known, and no known utilization exceeded the idle threshold. If no power is read, the
//     lowest rate of the counter in such times is used. Until such a time, it is 0: everything
//     counts as active.
//   - The activity of a partition is its mean utilization in the piece. It is assumed to change
//     evenly between two readings, and is unknown after the last reading of a partition that can't
//     be read any more.
//   - The holders of the parent itself divide the rest.
//
// Partitions have no power and energy as devices, so that the sum over a node counts each joule
// once. A partition that measures one of them gets no part of the parent's.
//
// The package asks no clock: each call has the time. Times are compared by the monotonic clock,
// which is never set, and stops while the node is suspended. The package knows no names of metrics
// or labels, and no limit of series; [Ledger.Evict] lets a limit drop ended holders.
//
// Bounds (max…) are for what the kubelet and vendors' libraries send.
package ledger
