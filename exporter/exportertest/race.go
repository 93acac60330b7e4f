//go:build race

package exportertest

// RaceEnabled lets expensive tests do less.
const RaceEnabled = true
