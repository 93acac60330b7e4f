// Package fit finds the smallest thing that a node offers into which a claim would have fitted: a
// partition that a driver lists, a share of a device with consumable capacity (KEP-5075), or fewer
// devices of the claim. It is pure: no I/O, no clock, no log.
//
// An advice holds for the claim's past. The claim's memory would never have exceeded that of the
// alternative. Its activity would have exceeded the compute of the alternative, less the margin, in
// at most 0.1 % of the time. Work is assumed to take longer in proportion to the compute: a device
// that is busy for 10 % of the time equals a quarter of it that is busy for 40 %.
package fit
