// Package attack attacks the real program on a large node, within the memory limit of the chart, by
// connections, scrapes, files and servers that cost as much as possible. Each attack is bounded in
// number and time, and stays on the loopback interface.
//
// $DRA_EXPORTER is the path of the program. README.md has the figures of each attack.
package attack

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

var (
	all  = flag.Bool("all", false, "run all attacks and judge times; else the short ones, without times")
	full = flag.Bool("full", false, "fill the flight recorder before the attacks of readers: 10 minutes each")
)

func TestMain(m *testing.M) {
	if description := os.Getenv(attackers); description != "" {
		fmt.Fprintln(os.Stderr, runAttackers(description))
		os.Exit(1)
	}
	flag.Parse()
	if os.Getenv(programPath) == "" {
		fmt.Fprintf(os.Stderr, "$%s does not name the exporter: run make attack, or build it and say where it is\n",
			programPath)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// attack is one attack on all of the program: its memory, and its answers to an honest scraper. The
// tests of packages have what hits a part of it, such as a pipe in place of a file.
type attack struct {
	name string // as in README.md
	// short: it takes at most two seconds, and its checks do not depend on the speed of the
	// machine, so that it also runs with the other system tests.
	short bool
	run   func(t testing.TB)
}

func attacks() []attack {
	by := func(crowd ...clients) func(testing.TB) {
		return func(t testing.TB) { attackBy(manyDevicesShared(t), crowd...) }
	}
	byTLS := func(crowd ...clients) func(testing.TB) {
		return func(t testing.TB) { attackBy(newTLSTarget(t), crowd...) }
	}
	of := func(more func() []*v1.PodResources) func(testing.TB) {
		return func(t testing.TB) { largeAnswer(newTarget(t), more()) }
	}
	return []attack{
		{name: "200 concurrent gzip scrapes", short: true, run: by(clients{"scrape", 200})},
		{name: "2 000 idle connections", run: by(clients{"idle", 2000})},
		{name: "2 000 unfinished requests", run: by(clients{"unfinished", 2000})},
		{name: "2 000 idle connections with TLS", run: byTLS(clients{"idle", 2000})},
		{name: "300 slow readers", short: true, run: by(clients{"slow", 300})},
		{name: "250 stuck streams of HTTP/2", short: true, run: byTLS(clients{"stuck", 1})},
		{
			name: "all of these at once",
			run:  byTLS(clients{"scrape", 200}, clients{"idle", 2000}, clients{"slow", 300}, clients{"stuck", 1}),
		},
		{name: "256 idle connections with 128 open files", short: true, run: fewFiles},
		{name: "90 unknown tokens a second", short: true, run: unknownTokens},
		{name: "50 clients guess passwords", short: true, run: wrongPasswords},
		{name: "400 slow connections of a scraper's address", short: true, run: slowNeighbors(newPasswordTarget)},
		{name: "the same, if it has a certificate", short: true, run: slowNeighbors(newCertificateTarget)},
		{name: "30 000 device IDs of one pod", run: of(manyIDs)},
		{name: "8 000 claims", run: of(func() []*v1.PodResources { return manyClaims(8000) })},
		{name: "32 000 claims", run: of(func() []*v1.PodResources { return manyClaims(32_000) })},
		{name: "a million devices of one claim", run: of(manyDevices)},
		{name: "a million pods", run: of(manyPods)},
		{name: "8 000 claims with GOMEMLIMIT=100MiB", run: littleMemory},
		{name: "24 readers of all paths while no pod starts", short: true, run: quietReaders},
	}
}

func TestAttacks(t *testing.T) {
	var left []string
	for _, a := range attacks() {
		if !a.short && !*all {
			left = append(left, a.name)
			continue
		}
		t.Run(a.name, func(t *testing.T) { a.run(t) })
	}
	for _, f := range fleets() {
		if !f.short && !*all {
			left = append(left, f.name)
			continue
		}
		t.Run(f.name, f.run)
	}
	if len(left) > 0 {
		t.Logf("left out, since make attack runs them: %s", strings.Join(left, ", "))
	}
}

// The table of README.md lists all attacks, and no others.
func TestTable(t *testing.T) {
	readme := must.Get(os.ReadFile("README.md"))(t)
	_, table, _ := strings.Cut(string(readme), "| attack | p99, age, resident | what limits the damage |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	_, table, _ = strings.Cut(table, "\n") // the line below the head
	rows := map[string]bool{}
	for line := range strings.Lines(table) {
		rows[strings.TrimSpace(strings.Split(line, "|")[1])] = true
	}
	var names []string
	for _, a := range attacks() {
		names = append(names, a.name)
	}
	for _, f := range fleets() {
		for _, s := range sieges() {
			names = append(names, s.name+f.of)
		}
	}
	for _, name := range names {
		expect.That(t, rows[name], "README.md has no row of the attack %q", name)
		delete(rows, name)
	}
	for name := range rows {
		t.Errorf("README.md has a row of %q, which is no attack", name)
	}
}

// lenient logs what would fail.
type lenient struct{ testing.TB }

func (l lenient) Errorf(format string, args ...any) {
	l.Logf("on a machine of its own it would fail: "+format, args...)
}

// timed returns t if durations are checked, else a test that only logs.
func timed(t testing.TB) testing.TB {
	if *all {
		return t
	}
	return lenient{t}
}
