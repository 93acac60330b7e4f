// Package recorder keeps the last minutes of every quantity and holder, notices incidents in them,
// and keeps for each the minute before and after. It is pure: it does no I/O, asks no clock and
// writes no log; all of it follows from the snapshots.
package recorder
