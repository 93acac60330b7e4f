package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	acceptOpenMetrics = "application/openmetrics-text;version=1.0.0"
	acceptProtobuf    = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

// busyNode returns a node with a pod whose device has readings.
func busyNode(t *testing.T) (*machine, flags) {
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	config := n.scrapeConfig(endpoint("vendor",
		vendor(t, fixed(fmt.Sprintf("power{uuid=%q} 100\nutilization{uuid=%[1]q} 0.5\n", uuid(0))))))
	f := n.flags(flags{"inventory.file": n.inventory(gpus(2)), "source.scrape.config": config})
	return n, f
}

// charged reports whether energy was attributed to the pod.
func (p *program) charged() bool {
	return p.scrape().positive("dra_pod_energy_joules_total", "pod", "a")
}

// After SIGTERM, a scraper that has scraped before can scrape once more, and gets everything up to
// that time.
func TestLastScrape(t *testing.T) {
	t.Parallel()
	_, f := busyNode(t)
	p := start(t, f.With(flags{"web.last-scrape-timeout": "10m", "sample.interval": "4s"}))
	p.eventually("charged", p.charged)
	before, _ := p.scrape().value("dra_pod_energy_joules_total", "pod", "a")
	time.Sleep(1500 * time.Millisecond) // less than the interval
	p.Terminate()
	p.eventually("waiting for the last scrape",
		func() bool { return strings.Contains(p.Log(), "waiting for the last scrape") })
	time.Sleep(500 * time.Millisecond)
	must.That(t, p.Running(), "the program did not wait for the last scrape")
	after, _ := p.lastScrape().value("dra_pod_energy_joules_total", "pod", "a")
	rise := after - before
	expect.That(t, rise >= 100, "the last scrape has %v J more, want at least one second at 100 W", rise)
	expect.Is(t, p.Wait(stopTimeout), 0, "exit status")
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process still exists: %v", err)
	}
}

// While the program waits for the last scrape, it continues reading.
func TestReadsUntilLastScrape(t *testing.T) {
	t.Parallel()
	_, f := busyNode(t)
	p := start(t, f.With(flags{"web.last-scrape-timeout": "10m"}))
	p.eventually("charged", p.charged)
	before, _ := p.scrape().value("dra_pod_energy_joules_total", "pod", "a")
	p.Terminate()
	p.eventually("waiting for the last scrape",
		func() bool { return strings.Contains(p.Log(), "waiting for the last scrape") })
	waiting := time.Now()
	p.eventually("reading on", func() bool { return p.report().Time.After(waiting.Add(5 * time.Second)) })
	after, _ := p.lastScrape().value("dra_pod_energy_joules_total", "pod", "a")
	rise := after - before
	expect.That(t, rise >= 250, "the last scrape has %v J more after 5 s at 100 W", rise)
	expect.Is(t, p.Wait(stopTimeout), 0, "exit status")
}

// Without a scraper, the program ends immediately. If the scraper does not scrape again, the
// program waits only for a limited time.
func TestStopWithoutLastScrape(t *testing.T) {
	t.Parallel()
	t.Run("no scraper", func(t *testing.T) {
		t.Parallel()
		p := start(t, newNode(t).flags(flags{"web.last-scrape-timeout": "10m"}))
		expect.Is(t, p.Stop(), 0, "exit status")
	})
	t.Run("a scraper before", func(t *testing.T) {
		t.Parallel()
		const timeout = 2 * time.Second
		p := start(t, newNode(t).flags(flags{"web.last-scrape-timeout": timeout.String()}))
		p.scrape()
		begun := time.Now()
		expect.Is(t, p.Stop(), 0, "exit status")
		took := time.Since(begun)
		expect.That(t, took >= timeout, "the program ended after %v, want at least %v", took, timeout)
	})
}

// An idle connection, as browsers open them in advance, neither causes an error nor delays the end
// for long.
func TestStopWhileConnected(t *testing.T) {
	t.Parallel()
	p := start(t, newNode(t).flags(nil))
	silent := must.Get(net.Dial("tcp", p.Address))(t)
	t.Cleanup(func() { _ = silent.Close() })
	expect.Is(t, p.Stop(), 0, "exit status")
}

// A kubelet and an endpoint that hang do not delay the end.
func TestStopWhileAllHang(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	hang := vendor(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	n.kubelet.Behave(func(ctx context.Context, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	p := start(t, n.flags(flags{"source.scrape.config": n.scrapeConfig(endpoint("hung", hang))}))
	p.scrape()
	expect.Is(t, p.Stop(), 0, "exit status")
}

// terminal is a separate tmux server with one terminal, in which a shell runs commands.
type terminal struct {
	t      *testing.T
	socket string
}

// openTerminal opens a terminal of a width in which a shell runs.
func openTerminal(t *testing.T, width int) *terminal {
	dir, err := os.MkdirTemp("", "tmux") //nolint:usetesting // the path of t.TempDir is too long for a socket
	must.Do(t, err)
	term := &terminal{t, filepath.Join(dir, "socket")}
	term.tmux("-u", "-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(width), "-y", "20", "env PS1='ready> ' sh")
	t.Cleanup(func() {
		term.tmux("kill-server")
		_ = os.RemoveAll(dir)
	})
	return term
}

func (t *terminal) tmux(args ...string) string {
	out, err := exec.Command("tmux", append([]string{"-S", t.socket}, args...)...).CombinedOutput()
	must.That(t.t, err == nil, "tmux %v: %v: %s", args, err, out)
	return string(out)
}

// keys presses keys, by tmux's names.
func (t *terminal) keys(keys ...string) {
	t.tmux(append([]string{"send-keys"}, keys...)...)
}

// screen returns what the terminal shows.
func (t *terminal) screen() string { return t.tmux("capture-pane", "-p") }

// await waits until the terminal shows all of some texts.
func (t *terminal) await(texts ...string) {
	t.awaitThat(strings.Join(texts, ", "), func(screen string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(screen, text) })
	})
}

func (t *terminal) awaitThat(what string, is func(screen string) bool) {
	t.t.Helper()
	for deadline := time.Now().Add(startTimeout); !is(t.screen()); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.t.Fatalf("not %s within %v:\n%s", what, startTimeout, t.screen())
		}
	}
}

func (t *terminal) alternate() bool {
	return strings.TrimSpace(t.tmux("display-message", "-p", "#{alternate_on}")) == "1"
}

// In a terminal, top uses the alternate screen and its width, sorts and filters, shows other views
// and details with recorded values, continues after a restart of the exporter, and restores the
// terminal.
func TestTopInTerminal(t *testing.T) {
	t.Parallel()
	_, f := busyNode(t)
	p := start(t, f)
	p.eventually("charged", p.charged)
	term := openTerminal(t, 55)
	term.await("ready>")
	term.keys(os.Getenv(programPath)+" top --url="+p.Address, "Enter")
	term.await("2 devices, 1 held", "gpu-0", "gpu-1", "team/a", "by state")
	expect.That(t, term.alternate(), "top does not use the alternate screen")
	shown := term.screen()
	if !strings.Contains(shown, "PODS") || !strings.Contains(shown, "POWER") || strings.Contains(shown, "ready>") {
		t.Errorf("at 55 columns it shows\n%s", shown)
	}
	term.keys("s", "/", "gpu-1", "Enter")
	term.await(`by device, 1 with "gpu-1"`)
	if screen := term.screen(); strings.Contains(screen, "gpu-0") {
		t.Errorf("filtered by gpu-1 it shows\n%s", screen)
	}
	term.keys("Escape") // alone: with another key it is Alt
	term.await("gpu-0", "gpu-1")
	term.keys("2")
	term.await("CLAIM ", "team/claim-a")
	term.keys("Enter")
	term.await("Claim team/claim-a on ", "state of the device", "Esc back")
	term.awaitThat("power of what is recorded", func(screen string) bool {
		term.keys("End") // the end moves when what is recorded arrives
		return strings.Contains(screen, "100 W") && strings.Contains(screen, "█")
	})
	term.keys("Escape")
	term.await("CLAIM ")
	term.keys("1")
	term.await("gpu-1")
	p.Stop()
	term.await("is stale for ", "gpu-0")
	again := maps.Clone(f)
	again["web.listen-address"] = p.Address
	start(t, again)
	term.awaitThat("renewed", func(screen string) bool { return !strings.Contains(screen, "is stale") })
	term.keys("q")
	term.await("ready>")
	expect.That(t, !term.alternate() && !strings.Contains(term.screen(), "gpu-0"),
		"after q the terminal shows\n%s", term.screen())
}

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
