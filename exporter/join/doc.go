// Package join answers, for one moment, who has which part of which device and what the device
// does.
//
// [Join] takes the allocations of a node, its inventory and the samples of all sources, and returns
// a [Device] for each device that is in the inventory or held: its shares with their weights, its
// readings, and, where there are none, the [MissingReason]. In order:
//
//  1. Input that can not be used is left out and counted (sanitize.go).
//  2. Allocations become shares of devices, which [Divide] weighs (divide.go).
//  3. Each sample is given to the device that is its hardware, by the best key that both have
//     (match.go); what pods report of health is added (health.go).
//  4. Each quantity of a device gets one owner: the first source, in order of precedence.
//  5. What the processes of the holders used divides the device better than weights, where known
//     (processes.go).
//
// The package is pure: it does no I/O, asks no clock, logs nothing and keeps no state. The order of
// its inputs changes nothing, but for the precedence of sources.
package join
