// Package expect compares what a test has with what it wants, and goes on.
package expect

import (
	"strings"

	"github.com/google/go-cmp/cmp"
)

// TB is a test, such as testing.TB or rapid.T.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Equal fails the test with the difference if two values are not equal by cmp.Diff. What names
// them; "": they need no name.
func Equal(tb TB, what string, want, got any, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Errorf("%s:\n%s", strings.TrimSpace(what+" (-want +got)"), diff)
	}
}

// OK fails the test at an error.
func OK(tb TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Errorf("%v", err)
	}
}
