package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// zonePath is the environment variable with the file of the time zone in which the programs of all
// tests run. All checks also hold when the clocks change: nothing depends on local time.
const zonePath = "E2E_ZONE"

// changeEvery is the time between two changes of the clocks of that zone.
const changeEvery = 5 * time.Second

// changeClocks writes the file into a folder, and sets the environment variable.
func changeClocks(dir string) error {
	path := filepath.Join(dir, "zone")
	if err := os.WriteFile(path, zone(time.Now()), 0o600); err != nil {
		return fmt.Errorf("write the time zone: %w", err)
	}
	if err := os.Setenv(zonePath, path); err != nil {
		return fmt.Errorf("set $%s: %w", zonePath, err)
	}
	return nil
}

// zone returns a time zone (RFC 8536, version 1) that alternates between 4:45 and 5:45 ahead of UTC
// for some hours from a time.
func zone(from time.Time) []byte {
	const changes, winter, summer, names = 2000, 4*3600 + 45*60, 5*3600 + 45*60, "WIN\x00SUM\x00"
	out := append([]byte("TZif"), make([]byte, 16)...)
	for _, count := range []uint32{0, 0, 0, changes, 2, uint32(len(names))} {
		out = binary.BigEndian.AppendUint32(out, count)
	}
	for i := range changes {
		out = binary.BigEndian.AppendUint32(out, uint32(from.Add(time.Duration(i)*changeEvery).Unix()))
	}
	for i := range changes {
		out = append(out, byte(i%2))
	}
	out = append(binary.BigEndian.AppendUint32(out, winter), 0, 0)
	out = append(binary.BigEndian.AppendUint32(out, summer), 1, 4)
	return append(out, names...)
}

// The program writes all times in UTC, and the created timestamps of counters are correct.
func TestLocalTime(t *testing.T) {
	t.Parallel()
	local := must.Get(time.LoadLocationFromTZData("changing", zone(time.Now())))(t)
	_, winter := time.Now().In(local).Zone()
	if _, summer := time.Now().Add(changeEvery).In(local).Zone(); summer-winter != 3600 && winter-summer != 3600 {
		t.Fatalf("the clocks change from %d to %d s ahead of UTC", winter, summer)
	}
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	config := n.scrapeConfig(endpoint("vendor", vendor(t, fixed(fmt.Sprintf("power{uuid=%q} 100\n", uuid(0))))))
	begun := time.Now()
	p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(1)), "source.scrape.config": config}))
	p.eventually("charged", func() bool { return p.scrape().positive("dra_claim_energy_joules_total") })
	saysTime := regexp.MustCompile(`"(time|since|ended|lastActive)": ?"([^"]*)"`)
	times := saysTime.FindAllSubmatch(p.page("/api/v1/snapshot").Body, -1)
	expect.That(t, len(times) >= 3, "%d times in the report", len(times))
	for _, found := range times {
		at, err := time.Parse(time.RFC3339Nano, string(found[2]))
		if err != nil || !strings.HasSuffix(string(found[2]), "Z") || at.Before(begun) || at.After(time.Now()) {
			t.Errorf("%s is %s, %v; want one in UTC since %v", found[1], found[2], err, begun.UTC())
		}
	}
	expect.That(t, strings.Contains(string(p.page("/").Body), " UTC"), "the page does not have the time in UTC")
}
