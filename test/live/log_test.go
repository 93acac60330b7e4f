package live

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestBrief(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var log strings.Builder
	for i := range 20 {
		fmt.Fprintf(&log, "time=1 level=INFO msg=receipt\ntime=1 level=WARN msg=%02d%s\n", i, strings.Repeat("x", 300))
	}
	log.WriteString("panic: everything")
	got := Brief(log.String())
	if strings.Contains(got, "receipt") || strings.Contains(got, "msg=08") || !strings.Contains(got, "msg=09") ||
		!strings.HasSuffix(got, "\npanic: everything") || !strings.HasPrefix(got, "12 of 21 ") || len(got) > 3000 {
		t.Errorf("%d bytes:\n%s", len(got), got)
	}
	_, name, _ := strings.Cut(got, "log: ")
	name, _, _ = strings.Cut(name, "\n")
	all, err := os.ReadFile(name)
	expect.That(t, err == nil && string(all) == log.String(), "the file has %d bytes of %d: %v", len(all), log.Len(), err)
}
