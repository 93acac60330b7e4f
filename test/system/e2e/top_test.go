package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
func (t *terminal) screen() string {
	return t.tmux("capture-pane", "-p")
}

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
