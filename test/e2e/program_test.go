package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout   = 3 * time.Minute
	stopTimeout    = 30 * time.Second
	maxScrapeTime  = time.Second
	scrapeAttempts = 5
)

// program is a running exporter.
type program struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string // host:port
	client  *http.Client
	ended   chan struct{} // closed when it ends

	mu    sync.Mutex
	lines []string
}

// flags are flags by name. One with an empty value is a boolean.
type flags map[string]string

func (f flags) with(more flags) flags {
	out := maps.Clone(f)
	maps.Copy(out, more)
	return out
}

func (f flags) args() []string {
	var out []string
	for name, value := range f {
		if value == "" {
			out = append(out, "--"+name)
		} else {
			out = append(out, "--"+name+"="+value)
		}
	}
	return out
}

// command returns the program with env as its whole environment.
func command(ctx context.Context, args []string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Getenv(programPath), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	return cmd
}

// start starts the program, waits until it serves its first snapshot, and stops it when the test
// ends.
func start(t *testing.T, f flags, env ...string) *program {
	t.Helper()
	p := launch(t, f, env...)
	p.eventually("ready", func() bool { return p.status("/readyz") == http.StatusOK })
	return p
}

// launch starts the program, waits until it listens, and stops it when the test ends.
func launch(t *testing.T, f flags, env ...string) *program {
	t.Helper()
	p := &program{
		t: t, cmd: command(context.Background(), f.args(), env...), ended: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout},
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening := make(chan string, 1)
	go p.follow(stderr, listening)
	t.Cleanup(p.end)
	select {
	case p.address = <-listening:
	case <-p.ended:
		t.Fatalf("the program ended: %v", p.cmd.ProcessState)
	case <-time.After(startTimeout):
		t.Fatal("the program does not listen")
	}
	return p
}

// follow keeps the program's log, finds its address in it, and waits for its end.
func (p *program) follow(stderr io.Reader, listening chan<- string) {
	address := regexp.MustCompile(`msg="Listening on" address=(\S+)`)
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		p.mu.Unlock()
		if found := address.FindStringSubmatch(lines.Text()); found != nil {
			listening <- found[1]
		}
	}
	_ = p.cmd.Wait() // the state tells how
	close(p.ended)
}

// log returns the log.
func (p *program) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// end stops the program and shows its log if the test failed.
func (p *program) end() {
	if p.running() {
		if status := p.stop(); status != 0 {
			p.t.Errorf("exit status %d on SIGTERM, want 0", status)
		}
	}
	if p.t.Failed() {
		p.t.Logf("the program's log:\n%s", p.log())
	}
	if strings.Contains(p.log(), "DATA RACE") || strings.Contains(p.log(), "panic:") {
		p.t.Errorf("the program's log:\n%s", p.log())
	}
}

func (p *program) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// stop sends SIGTERM and returns the exit status. It kills the program if it does not end.
func (p *program) stop() int {
	p.t.Helper()
	p.terminate()
	return p.wait(stopTimeout)
}

func (p *program) terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Errorf("send SIGTERM: %v", err)
	}
}

func (p *program) wait(timeout time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(timeout):
		p.t.Errorf("the program runs %v after SIGTERM", timeout)
		_ = p.cmd.Process.Kill() // it may have ended by now
		<-p.ended
	}
	return p.cmd.ProcessState.ExitCode()
}

// answer is a response of the program.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// get requests a path. The headers are alternating names and values.
func (p *program) get(path string, headers ...string) (answer, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+p.address+path, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return do(p.client, request)
}

func do(client *http.Client, request *http.Request) (answer, error) {
	begun := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	body, err := io.ReadAll(response.Body)
	err = errors.Join(err, response.Body.Close())
	return answer{status: response.StatusCode, header: response.Header, body: body, took: time.Since(begun)}, err
}

// page requests a path that must exist.
func (p *program) page(path string, headers ...string) answer {
	p.t.Helper()
	a, err := p.get(path, headers...)
	if err != nil {
		p.t.Fatalf("get %s: %v", path, err)
	}
	if a.status != http.StatusOK {
		p.t.Fatalf("get %s: status %d: %.300s", path, a.status, a.body)
	}
	return a
}

// status returns the status of a path, or 0 without a response.
func (p *program) status(path string) int {
	a, err := p.get(path)
	if err != nil {
		return 0
	}
	return a.status
}

// scrape scrapes the program, which must always answer in time.
func (p *program) scrape() metrics {
	p.t.Helper()
	return parseMetrics(p.t, p.timely().body)
}

// timely scrapes the program and checks the duration. A program that waits during scrapes is always
// slow; if the machine is stalled, only one or two scrapes are.
func (p *program) timely() answer {
	p.t.Helper()
	var slow []time.Duration
	for {
		a := p.page("/metrics")
		if a.took <= maxScrapeTime {
			return a
		}
		if slow = append(slow, a.took); len(slow) == scrapeAttempts {
			p.t.Errorf("the scrapes took %v, want at most %v", slow, maxScrapeTime)
			return a
		}
	}
}

// lastScrape scrapes a program that waits for its last scrape.
func (p *program) lastScrape() metrics {
	p.t.Helper()
	return parseMetrics(p.t, p.page("/metrics").body)
}

// eventually waits until a condition holds.
func (p *program) eventually(what string, is func() bool) {
	p.t.Helper()
	p.within(startTimeout, what, is)
}

func (p *program) within(timeout time.Duration, what string, is func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(timeout); !is(); time.Sleep(50 * time.Millisecond) {
		if !p.running() {
			p.t.Fatalf("not %s: the program has ended: %v", what, p.cmd.ProcessState)
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("not %s within %v", what, timeout)
		}
	}
}

// memory returns a field of /proc/PID/status in bytes: VmRSS or VmHWM.
func (p *program) memory(field string) int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return n << 10
		}
	}
	p.t.Fatalf("no %s in the status of the process", field)
	return 0
}
