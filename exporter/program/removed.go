package program

import "github.com/dra-exporter/dra-exporter/exporter/top"

// What has been removed is accepted for a release, and says what to use instead.
const (
	removedIncidents = "incidents"
	removedClaim     = "claim"
)

// replaced returns the command in place of one that has been removed, and what to tell the user
// about that and about removed flags.
func (o *options) replaced(command string) (instead string, notices []string) {
	if o.check.bundle != "" {
		notices = append(notices, "--bundle has no effect: use check --output=json, and /api/v1/snapshot")
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
