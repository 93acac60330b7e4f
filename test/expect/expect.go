// Package expect checks what a test has, and goes on.
package expect

import (
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/test/must"
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
		tb.Errorf("%s:\n%s%s", strings.TrimSpace(what+" (-want +got)"), diff, must.Callers())
	}
}

// OK fails the test at an error.
func OK(tb TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Errorf("%v%s", err, must.Callers())
	}
}

// That fails the test with a message unless a condition holds.
func That(tb TB, ok bool, format string, args ...any) {
	if !ok {
		tb.Helper()
		tb.Errorf("%s%s", fmt.Sprintf(format, args...), must.Callers())
	}
}

// Is fails the test unless a value is the one that is wanted. The message begins with the name of
// the value.
func Is[T comparable](tb TB, got, want T, what string, args ...any) {
	if got != want {
		tb.Helper()
		tb.Errorf("%s: %v, want %v%s", fmt.Sprintf(what, args...), got, want, must.Callers())
	}
}
