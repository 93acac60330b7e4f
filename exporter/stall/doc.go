// Package stall judges whether a claim that keeps its device busy does any work there. A kernel
// that waits in a collective operation for a rank that is gone spins: the device's utilization, the
// share of time in which any kernel runs, is 100 %, and nothing else happens. A kernel that never
// ends looks alike.
//
// A claim is stalled if for --stalled.after nothing shows life: no engine, no memory traffic, no
// link, and little power. One sign of life is enough to clear it, whatever the claim did at other
// times. Where the same could be a wait that ends by itself, or where something that would tell is
// not measured, the judgement is unknown, with a reason. See README.md for the rule and its
// figures.
//
// The package is pure: no I/O, no clock, no log.
package stall
