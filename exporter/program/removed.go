package program

import (
	"maps"
	"slices"

	"github.com/alecthomas/kingpin/v2"

	"github.com/dra-exporter/dra-exporter/exporter/top"
)

// What has been removed is accepted for a release, and says what to use instead.
const (
	removedIncidents = "incidents"
	removedClaim     = "claim"
)

// removedFlags returns the switches that have been removed, and what to use instead.
func removedFlags() map[string]string {
	return map[string]string{
		"source.intelgpu.pmu": "use --source.drm, which reads the engines that processes use",
	}
}

// addRemoved adds the switches that have been removed.
func (o *options) addRemoved(app *kingpin.Application) {
	o.removed = map[string]*bool{}
	for name := range removedFlags() {
		o.removed[name] = app.Flag(name, "").Hidden().Bool()
	}
}

// replaced returns the command in place of one that has been removed, and what to tell the user
// about that and about removed flags.
func (o *options) replaced(command string) (instead string, notices []string) {
	if o.check.bundle != "" {
		notices = append(notices, "--bundle has no effect: use check --output=json, and /api/v1/snapshot")
	}
	if o.check.device != "" {
		notices = append(notices, "--device has no effect: use why DEVICE")
	}
	for _, name := range slices.Sorted(maps.Keys(o.removed)) {
		if *o.removed[name] {
			notices = append(notices, "--"+name+" has no effect: "+removedFlags()[name])
		}
	}
	switch command {
	case removedIncidents:
		o.top.view = string(top.ViewIncidents)
		return commandTop, append(notices, "the command incidents will be removed: use top --view=incidents")
	case removedClaim:
		return commandWhy, append(notices, "the command claim will be removed: use why NAMESPACE/NAME")
	default:
		return command, notices
	}
}
