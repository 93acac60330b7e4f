package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// check says of how many pods that hold devices the cgroups can be read, and what follows if not.
func TestCheckWorks(t *testing.T) {
	t.Parallel()
	uid := func(i int) string { return fmt.Sprintf("6c61b571-6b3c-4d5e-8f0b-9b8d5c1a%04d", i) }
	n := newNode(t)
	n.setPods(pod("team", "seen", "claim-seen", gpu(0)), pod("team", "blind", "claim-blind", gpu(1)))
	for i, name := range []string{"seen", "blind"} {
		n.addPod("team", name, uid(i))
	}
	args := append(n.flags(flags{"inventory.file": n.inventory(gpus(2))}).Args(), "check", "-o", "json")
	reads := func(i int) {
		n.mkdir(cgroup(uid(i)))
		n.write(cgroup(uid(i))+"/cpu.stat", "usage_usec 1000\n")
		n.write(cgroup(uid(i))+"/memory.stat", "anon 4096\nfile 4096\npgfault 10\n")
	}
	const some = "CPU and memory of 1 of 2 pods that hold devices are readable, storage of 0, network of 0; for the " +
		"others it is unknown whether a claim is stalled (no_host)"
	for i, want := range []struct {
		before       func()
		status, text string
	}{
		{func() { reads(0) }, "WARN", some},
		{func() { n.endPod(uid(1)) }, "WARN", some}, // it has no cgroup
		{
			func() { reads(1) },
			"OK", "CPU and memory of 2 of 2 pods that hold devices are readable, storage of 0, network of 0",
		},
	} {
		want.before()
		_, stdout, stderr := run(t, args)
		var report struct {
			Findings []struct{ Status, What, Text string }
		}
		err := json.Unmarshal([]byte(stdout), &report)
		must.That(t, err == nil, "%v: %s %s", err, stdout, stderr)
		at := slices.IndexFunc(report.Findings, func(f struct{ Status, What, Text string }) bool {
			return f.What == "pods' cgroups"
		})
		expect.That(t, at >= 0 && report.Findings[at].Status == want.status && report.Findings[at].Text == want.text,
			"check %d: %s", i, stdout)
	}
}
