// Package must ends a test that can't go on.
package must

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// TB is a test, such as testing.TB or rapid.T.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Do ends the test if there is an error.
func Do(tb TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%v%s", err, Callers())
	}
}

// That ends the test with a message unless a condition holds.
func That(tb TB, ok bool, format string, args ...any) {
	if !ok {
		tb.Helper()
		tb.Fatalf("%s%s", fmt.Sprintf(format, args...), Callers())
	}
}

// Get returns what a function has returned, or ends the test at its error: must.Get(f())(t).
func Get[T any](value T, err error) func(tb TB) T {
	return func(tb TB) T {
		tb.Helper()
		Do(tb, err)
		return value
	}
}

// Callers returns the lines that called the function that checks something, and so on to the test:
// what a test calls needs no tb.Helper.
func Callers() string {
	var pcs [64]uintptr
	var lines []string
	for frames, more := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])]), true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		if strings.HasPrefix(frame.Function, "github.com/dra-exporter/") &&
			!strings.HasSuffix(frame.File, "/test/must/must.go") && !strings.HasSuffix(frame.File, "/test/expect/expect.go") {
			lines = append(lines, fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line))
		}
	}
	if lines = slices.Compact(lines); len(lines) < 2 {
		return "" // testing prints the line
	}
	return "\n(called at " + strings.Join(lines[1:], ", ") + ")"
}
