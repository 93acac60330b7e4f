package live

import (
	"fmt"
	"os"
	"strings"
)

// Brief returns the end of what an exporter logged, short enough to leave the test's own words in
// sight: the last warnings and errors, cut, and the name of a file that has all of it.
func Brief(log string) string {
	const most, width = 12, 200
	var told []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, " level=INFO ") || strings.Contains(line, " level=DEBUG ") {
			continue
		}
		line = strings.TrimSuffix(line, "\n")
		if len(line) > width {
			line = line[:width] + "…"
		}
		told = append(told, line)
	}
	all := "which could not be written"
	if f, err := os.CreateTemp("", "exporter-*.log"); err == nil {
		_, err = f.WriteString(log)
		if f.Close() == nil && err == nil {
			all = f.Name()
		}
	}
	shown := told[max(0, len(told)-most):]
	return fmt.Sprintf("%d of %d warnings and errors; all of the log: %s\n%s", len(shown), len(told), all,
		strings.Join(shown, "\n"))
}
