package live

import (
	"fmt"
	"os"
	"strings"
)

// Brief returns a short end of an exporter's log for the output of a test: the last warnings and
// errors, truncated, and the name of a file with the complete log.
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
