package must_test

import (
	"regexp"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A failure is said with the lines that led to it, without those of must and expect.
func TestCallers(t *testing.T) {
	expect.That(t, must.Callers() == "", "a check of the test itself: %q", must.Callers())
	expect.That(t, regexp.MustCompile(`^\n\(called at must_test.go:\d+\)$`).MatchString(helper()), "%q", helper())
}

func helper() string { return must.Callers() }
