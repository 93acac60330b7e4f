package present

import (
	"fmt"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/stall"
)

// progressOf returns what a verdict about a claim's progress stands on, as sentences.
func progressOf(v *stall.Verdict) string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case v.Unknown != stall.Known:
		say("Unknown: %s.", v.Unknown.Meaning())
	case v.Stalled != nil:
		say("For %s, none of these has shown progress: %s.", Duration(v.For.Seconds()), words(v.Stalled))
	case len(v.Progress) > 0:
		say("Progress: %s.", words(v.Progress))
	}
	if len(v.Missing) > 0 {
		say("Not measured: %s.", words(v.Missing))
	}
	switch {
	case len(v.HostShows) > 0:
		say("The pods' %s show work on the host.", words(v.HostShows))
	case len(v.Host) > 0:
		say("The pods show no work on the host by %s.", words(v.Host))
	}
	if v.Ranks > 1 {
		say("Of %d ranks on this node, %d work and %d do nothing: %s.", v.Ranks, v.Working, v.Still, words(v.Peers))
	}
	if v.Before != "" {
		say("Since %s; before: %s.", Clock(v.Since), v.Before)
	}
	return strings.Join(out, " ")
}

func words[S fmt.Stringer](signals []S) string { return nameOf(strings.Join(texts(signals), ", ")) }
