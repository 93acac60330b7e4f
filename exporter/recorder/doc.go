// Package recorder keeps the last minutes of every quantity and holder, detects incidents, and
// keeps a recording of the minute before and after each. It is pure: it does no I/O, asks no clock
// and writes no log. Its results depend only on the snapshots.
//
// Bounds (max…) are for what the kubelet and vendors' libraries send.
package recorder
