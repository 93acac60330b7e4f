// Package fit finds the smallest thing that a node offers into which a claim would have fitted: a
// partition that a driver lists, a share of a device with consumable capacity (KEP-5075), or fewer
// devices of the claim. It is pure: no I/O, no clock, no log.
//
// What is advised holds for the past of the claim: its memory would never have exceeded that of the
// alternative, and its activity would have exceeded the compute of the alternative, less the
// margin, in at most 0.1 % of the time. Activity is taken to be work that takes as much longer as
// the alternative has less compute: a device that is busy for 10 % of the time is a quarter of it
// for 40 %.
package fit
