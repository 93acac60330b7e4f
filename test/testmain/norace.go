//go:build !race

package testmain

// RaceEnabled lets expensive tests do less.
const RaceEnabled = false
