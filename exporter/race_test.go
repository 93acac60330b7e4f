//go:build race

package exporter

// raceEnabled tells tests of much work to do less of it.
const raceEnabled = true
