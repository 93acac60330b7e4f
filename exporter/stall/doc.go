// Package stall judges whether a claim that keeps its device busy does any work. A kernel that
// waits in a collective operation for a missing rank spins: the device's utilization (the share of
// time in which any kernel runs) is 100 %, but nothing else happens. A kernel that never ends looks
// the same.
//
// A claim is stalled if nothing shows progress for --stalled.after: no engine, no memory traffic,
// no link, and little power. One sign of life is enough to clear it. If the same could be a wait
// that ends by itself, or if an important signal is not measured, the verdict is unknown, with a
// reason.
// See README.md for the rule and its figures.
//
// The package is pure: no I/O, no clock, no log.
//
// Bounds (max…) are for what vendors' libraries send.
package stall
