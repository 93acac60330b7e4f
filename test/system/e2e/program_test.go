package e2e

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/node"
)

const (
	startTimeout   = 3 * time.Minute
	stopTimeout    = 30 * time.Second
	maxScrapeTime  = time.Second
	scrapeAttempts = 5
)

// program is a running exporter.
type program struct {
	*live.Program
	t      *testing.T
	client *http.Client
}

// flags are flags by name. One with an empty value is a boolean.
type flags = node.Flags

// command returns the program with env as its complete environment, in a time zone whose clocks
// change every 5 s, with the sources of all quantities.
func command(ctx context.Context, args []string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Getenv(programPath), args...)
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "TZ=" + os.Getenv(zonePath),
		"DRA_EXPORTER_METRICS_QUANTITY_SOURCE=on", "DRA_EXPORTER_METRICS_DETAILS=on",
	}, env...)
	return cmd
}

// start starts the program, waits until it serves its first snapshot, and stops it when the test
// ends.
func start(t *testing.T, f flags, env ...string) *program {
	p := launch(t, f, env...)
	p.eventually("ready", func() bool { return p.status("/readyz") == http.StatusOK })
	return p
}

// launch starts the program, waits until it listens, and stops it when the test ends.
func launch(t *testing.T, f flags, env ...string) *program {
	return &program{
		Program: live.Launch(t, command(context.Background(), f.Args(), env...)), t: t,
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout},
	}
}

// answer is a response of the program.
type answer = live.Answer

// get requests a path. The headers are alternating names and values.
func (p *program) get(path string, headers ...string) (answer, error) {
	return live.Ask(context.Background(), p.client, "http://"+p.Address+path, headers...)
}

// page requests a path that must exist.
func (p *program) page(path string, headers ...string) answer {
	a, err := p.get(path, headers...)
	must.That(p.t, err == nil, "get %s: %v", path, err)
	must.That(p.t, a.Status == http.StatusOK, "get %s: status %d: %.300s", path, a.Status, a.Body)
	return a
}

// status returns the status of a path, or 0 without a response.
func (p *program) status(path string) int {
	a, err := p.get(path)
	if err != nil {
		return 0
	}
	return a.Status
}

// scrape scrapes the program, which must always answer in time.
func (p *program) scrape() metrics {
	return parseMetrics(p.t, p.timely().Body)
}

// timely scrapes the program and checks the duration. A program that waits during scrapes is always
// slow; if the machine is stalled, only one or two scrapes are.
func (p *program) timely() answer {
	p.t.Helper()
	var slow []time.Duration
	for {
		a := p.page("/metrics")
		if a.Took <= maxScrapeTime {
			return a
		}
		if slow = append(slow, a.Took); len(slow) == scrapeAttempts {
			p.t.Errorf("the scrapes took %v, want at most %v", slow, maxScrapeTime)
			return a
		}
	}
}

// lastScrape scrapes a program that waits for its last scrape.
func (p *program) lastScrape() metrics {
	return parseMetrics(p.t, p.page("/metrics").Body)
}

// eventually waits until a condition holds.
func (p *program) eventually(what string, is func() bool) {
	p.within(startTimeout, what, is)
}

func (p *program) within(timeout time.Duration, what string, is func() bool) {
	for deadline := time.Now().Add(timeout); !is(); time.Sleep(50 * time.Millisecond) {
		must.That(p.t, p.Running(), "not %s: the program has ended: %v", what, p.State())
		must.That(p.t, !time.Now().After(deadline), "not %s within %v", what, timeout)
	}
}

// cpu returns the processor time of the program.
func (p *program) cpu() time.Duration {
	d := must.Get(p.CPU())(p.t)
	return d
}

// memory returns a field of /proc/PID/status in bytes: VmRSS or VmHWM.
func (p *program) memory(field string) int64 {
	n := must.Get(p.Memory(field))(p.t)
	return n
}
