package scrape

import (
	"embed"
	"strings"
)

// presets are the configurations of known exporters, in the format of a configuration file.
//
//go:embed presets
var presets embed.FS

// presetNames returns the names of the presets.
func presetNames() []string {
	entries, _ := presets.ReadDir("presets") // it is in the program
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}
