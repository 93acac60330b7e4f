package scrape

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"
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

// applyPreset sets the defaults of a preset. The endpoint's own metrics come before those of the
// preset and replace those with the same name, and so do those of a preset that has another one.
func (e *Endpoint) applyPreset(name string) error {
	text, err := presets.ReadFile("presets/" + name + ".yaml")
	if err != nil {
		return fmt.Errorf("preset: %.64q is not one of %s", name, strings.Join(presetNames(), ", "))
	}
	var p endpointFields
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		return fmt.Errorf("preset: %s: %w", name, oneLine(err))
	}
	own := slices.Clone(e.Metrics)
	for _, m := range p.Metrics {
		if !slices.ContainsFunc(own, func(o Metric) bool { return o.Name == m.Name }) {
			e.Metrics = append(e.Metrics, m)
		}
	}
	if p.Preset != "" {
		return e.applyPreset(p.Preset)
	}
	if p.Driver != nil {
		e.Driver = *p.Driver
	}
	if p.Partition != nil {
		e.Partition = *p.Partition
	}
	if p.Refresh != "" {
		refresh, err := duration("refresh", p.Refresh, 0)
		if err != nil {
			return fmt.Errorf("preset: %s: %w", name, err)
		}
		e.Refresh = &refresh
	}
	e.Match = *p.Match
	return nil
}
