// Package hostile plays sources that are wrong, about each quantity and in each way, through join,
// ledger, recorder and exposition: first one that reports readings (drivertest.Hostile), then the
// sources themselves, whose inputs are wrong in their own encoding.
package hostile
