package live

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// stopTimeout is how long the exporter may take to end on a slow machine.
const stopTimeout = 30 * time.Second

// Program is a running exporter. It is safe for concurrent use.
type Program struct {
	Address string // host:port, where it listens

	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{} // closed when it ends

	mu    sync.Mutex
	lines []string
}

// Launch starts the exporter and waits until it listens. When the test ends, the exporter is
// stopped: its exit status must be 0, and its log must have no panic. The log is shown if the test
// failed.
func Launch(t testing.TB, cmd *exec.Cmd) *Program {
	p := &Program{t: t, cmd: cmd, ended: make(chan struct{})}
	stderr := must.Get(cmd.StderrPipe())(t)
	must.Do(t, cmd.Start())
	listening := make(chan string, 1)
	go p.follow(stderr, listening)
	t.Cleanup(p.end)
	select {
	case p.Address = <-listening:
	case <-p.ended:
		must.That(t, false, "the program ended: %v", cmd.ProcessState)
	case <-time.After(startTimeout):
		must.That(t, false, "the program does not listen")
	}
	return p
}

// follow keeps the log, finds the address in it, and waits for the end.
func (p *Program) follow(stderr io.Reader, listening chan<- string) {
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

// end stops the program and checks how it ended.
func (p *Program) end() {
	if p.Running() {
		if status := p.Stop(); status != 0 {
			p.t.Errorf("exit status %d on SIGTERM, want 0", status)
		}
	}
	if p.t.Failed() {
		p.t.Logf("the program's log: %s", Brief(p.Log()))
	}
	expect.That(p.t, !strings.Contains(p.Log(), "DATA RACE") && !strings.Contains(p.Log(), "panic:"),
		"the program's log:\n%s", p.Log())
}

// Log returns what the program has logged.
func (p *Program) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// PID returns the ID of the process.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Ended returns a channel that is closed when the program has ended.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Running reports whether the program has not ended.
func (p *Program) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// State returns how the program ended, nil while it runs.
func (p *Program) State() *os.ProcessState {
	if p.Running() {
		return nil
	}
	return p.cmd.ProcessState
}

// Stop sends SIGTERM and returns the exit status. It kills the program if it does not end.
func (p *Program) Stop() int {
	p.Terminate()
	return p.Wait(stopTimeout)
}

// Terminate sends SIGTERM.
func (p *Program) Terminate() {
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	expect.That(p.t, err == nil, "send SIGTERM: %v", err)
}

// Kill ends the program at once, and waits for its end.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended by now
	<-p.ended
}

// Wait waits for the program's end and returns the exit status. It kills the program after timeout.
func (p *Program) Wait(timeout time.Duration) int {
	select {
	case <-p.ended:
	case <-time.After(timeout):
		expect.That(p.t, false, "the program runs %v after SIGTERM", timeout)
		p.Kill()
	}
	return p.cmd.ProcessState.ExitCode()
}

// CPU returns how long the program has run on processors, and the kernel for it.
func (p *Program) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("read the time of the program: %w", err)
	}
	_, after, _ := strings.Cut(string(stat), ") ") // the name may have spaces
	fields := strings.Fields(after)
	const state, utime = 3, 14 // in proc_pid_stat(5)
	if len(fields) <= utime-state+1 {
		return 0, fmt.Errorf("the status of process %d is %q", p.PID(), stat)
	}
	ticks := 0
	for _, field := range fields[utime-state : utime-state+2] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("read the time of the program: %w", err)
		}
		ticks += n
	}
	const tick = time.Second / 100 // USER_HZ, a constant of the kernel's interface
	return time.Duration(ticks) * tick, nil
}

// Memory returns a field of /proc/PID/status in bytes: VmRSS, or VmHWM, its maximum.
func (p *Program) Memory(field string) (int64, error) { return Memory(p.PID(), field) }

// Memory returns a field of /proc/PID/status in bytes.
func Memory(pid int, field string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of the program: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read the memory of the program: %w", err)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("no %s in the status of process %d", field, pid)
}
