// Package must ends a test that can't go on.
package must

// TB is a test, such as testing.TB or rapid.T.
type TB interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// Do ends the test if there is an error.
func Do(tb TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// That ends the test with a message unless a condition holds.
func That(tb TB, ok bool, format string, args ...any) {
	if !ok {
		tb.Helper()
		tb.Fatalf(format, args...)
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
