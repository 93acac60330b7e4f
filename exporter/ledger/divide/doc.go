// Package divide divides what a device counts among those who hold it at that time. It is pure: it
// knows no counters and no accounts, and any type can be a holder.
//
// [Segments] are who held which part of a device when. [Known] is what was known of the use of its
// shares, and [Activity] how much a partition of it was used, from which parts are computed.
//
// Bounds (max…) are for what the kubelet and vendors' libraries send.
package divide
