// Package join computes, for one moment, which holder has which part of a device, and what the
// device does.
//
// [Join] takes the allocations of a node, its inventory and the samples of all sources. It returns
// a [Device] for each device that is in the inventory or held: its shares with their weights, and
// its readings or the [MissingReason]. The steps are:
//
//  1. Allocations become shares of devices with weights (divide.go).
//  2. Each sample is given to the device with the same hardware, by the best key that both have
//     (match.go); the health in pods' statuses is added (owners.go).
//  3. Readings that are none are left out and counted (owners.go).
//  4. Each quantity of a device gets one owner: the first source, in order of precedence.
//  5. Where the use of the holders' processes is known, it replaces the weights (processes.go).
//
// The package is pure: it does no I/O, asks no clock, logs nothing and keeps no state. The order of
// its inputs does not matter, except for the precedence of sources.
//
// Bounds (max…) are for what the kubelet and vendors' libraries send.
package join
