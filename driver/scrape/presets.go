package scrape

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"
)

// preset is the configuration of a known exporter, in the format of a configuration file.
type preset struct{ name, text string }

func presets() []preset {
	return []preset{
		{"dcgm-exporter", presetDCGM + presetDCGMMetrics},
		{"dcgm-exporter-4.6", presetDCGM + presetDCGM46Metrics + presetDCGMMetrics},
		{"nvidia-gpu-exporter", presetNvidiaGPU},
		{"hami-vgpu-monitor", presetHAMi},
		{"amd-device-metrics-exporter", presetAMD + presetAMDMetrics + withPrefix("amd_", presetAMDMetrics)},
		{"xpumd", presetXPUMD},
		{"gaudi-metric-exporter", presetGaudi},
		{"neuron-monitor", presetNeuron},
		{"gke-tpu-device-plugin", presetTPU},
		{"ascend-npu-exporter", presetAscend},
		{"furiosa-metrics-exporter", presetFuriosa},
		{"tenstorrent-telemetry", presetTenstorrent},
		{"node-exporter", presetNode},
	}
}

// presetNames returns the names of the presets.
func presetNames() []string {
	var names []string
	for _, p := range presets() {
		names = append(names, p.name)
	}
	return names
}

// presetText returns the text of the preset with a name.
func presetText(name string) (string, bool) {
	for _, p := range presets() {
		if p.name == name {
			return p.text, true
		}
	}
	return "", false
}

// withPrefix returns the metrics with a prefix added to their names.
func withPrefix(prefix, metrics string) string {
	return strings.ReplaceAll(metrics, "{name: ", "{name: "+prefix)
}

// applyPreset sets the defaults of a preset. The endpoint's own metrics come before those of the
// preset and replace those with the same name.
func (e *Endpoint) applyPreset(name string) error {
	text, ok := presetText(name)
	if !ok {
		return fmt.Errorf("preset: %.64q is not one of %s", name, strings.Join(presetNames(), ", "))
	}
	var p endpointFields
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		return fmt.Errorf("preset: %s: %w", name, oneLine(err))
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
		e.presetRefresh = &refresh
	}
	e.Match = *p.Match
	own := slices.Clone(e.Metrics)
	for _, m := range p.Metrics {
		if !slices.ContainsFunc(own, func(o Metric) bool { return o.Name == m.Name }) {
			e.Metrics = append(e.Metrics, m)
		}
	}
	return nil
}
