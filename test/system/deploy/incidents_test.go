package deploy

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

// testIncidents installs the chart with events and a folder for incidents. The chart's rights
// suffice for events, which the API server says, and by default there are none to write; a folder
// that the exporter can't write would end it.
func (w *world) testIncidents(t *testing.T) {
	may := func(verb string) string {
		// It fails where the answer is no.
		out, _ := w.cluster.Kubectl(t.Context(), "", "auth", "can-i", verb, "events", "--all-namespaces",
			"--as=system:serviceaccount:"+namespace+":"+release)
		return strings.TrimSpace(string(out))
	}
	for _, verb := range []string{"create", "patch"} {
		expect.Is(t, may(verb), "no", "by default the exporter may %s events", verb)
	}
	w.install(object{"web": object{}, "incidents": object{"events": true}})
	for verb, want := range map[string]string{"create": "yes", "patch": "yes", "delete": "no", "list": "no"} {
		expect.Is(t, may(verb), want, "the exporter may %s events", verb)
	}
	// The first one may have asked for its rights before the API server's authorizer knew of them.
	w.kubectl("delete", "pod", "-n", namespace, "-l", "app.kubernetes.io/name="+release)
	w.healthy(t)
	log := w.kubectl("logs", "-n", namespace, w.pods()[0].Name)
	expect.That(t, !strings.Contains(log, "events about incidents are not written"), "the exporter misses rights: %s", log)
}
