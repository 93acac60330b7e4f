package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

var (
	labNodes = flag.Int("lab.nodes", 1000, "number of nodes in the tests of a bad day")
	labFor   = flag.Duration("lab.for", 20*time.Second, "how long these tests look at the page")
)

const (
	lookEach   = 5 * time.Second // the page's script does
	maxAge     = 15 * time.Second
	maxFirst   = time.Second
	maxPeak    = 160 << 20
	maxTop     = 100 << 20
	firstBytes = 4 * time.Second
	late       = 2 * time.Second // how late a busy machine may be

	wholeAnswer = 20 * time.Second
)

// Nodes that hang cost no other node: healthy nodes are shown at once, are never said to be dead,
// and are asked as often as without them. Nodes that hang are asked less often. Without any, what
// reading all nodes takes is printed.
func TestHangingNodes(t *testing.T) {
	for _, hanging := range []int{0, *labNodes * 15 / 100, *labNodes / 2} {
		t.Run(fmt.Sprint(hanging), func(t *testing.T) {
			l := newLab(t, *labNodes, some(*labNodes, hanging, hangs))
			begun := time.Now()
			first := l.look()
			expect.That(t, first.took <= maxFirst+late, "the first page took %v, want %v", first.took, maxFirst)
			dead, oldest, missing, used, moved := len(first.dead), time.Duration(0), first.missing, l.gateway.cpu(), l.bytes()
			for next := begun.Add(lookEach); time.Since(begun) < *labFor; next = next.Add(lookEach) {
				time.Sleep(time.Until(next))
				seen := l.look()
				if len(seen.dead) > 0 {
					t.Errorf("after %v healthy nodes are called dead: %d, such as %s", time.Since(begun), len(seen.dead), seen.dead[0])
				}
				dead = max(dead, len(seen.dead))
				if time.Since(begun) > maxAge {
					oldest, missing = max(oldest, seen.oldest), seen.missing
				}
			}
			expect.That(t, oldest <= maxAge && missing <= 0,
				"the oldest answer of a healthy node is of %v ago, want %v; %d are missing", oldest, maxAge, missing)
			l.mu.Lock()
			most := 0
			for i := range l.manners {
				most = max(most, l.asked[i])
			}
			l.mu.Unlock()
			t.Logf("%d of %d nodes hang: first page after %v without %d healthy nodes; healthy nodes called dead: %d at most, "+
				"oldest answer %v; a hanging node was asked %d times at most; %.1f MiB at most; %.2f %% of a processor, %.2f MB a "+
				"minute", hanging, *labNodes, first.took.Round(time.Millisecond), first.missing, dead,
				oldest.Round(100*time.Millisecond), most, mib(l.gateway.memory("VmHWM")),
				100*(l.gateway.cpu()-used).Seconds()/time.Since(begun).Seconds(),
				float64(l.bytes()-moved)/1e6/time.Since(begun).Minutes())
		})
	}
}

// Nodes that send more than a node has are named, and cost neither the others nor the gateway's
// memory. Among them are all other manners.
func TestLyingNodes(t *testing.T) {
	liars := some(*labNodes, 10, lies)
	for i, how := range []manner{floods, drips, hangs} {
		liars[i+1] = how
	}
	l := newLab(t, *labNodes, liars)
	seen := l.look()
	live.Await(t, startTimeout, "the honest nodes are shown, and the others named", func() error {
		time.Sleep(time.Second)
		seen = l.look()
		if named := strings.Count(seen.page, "answers too much"); seen.missing > 0 || named != 11 ||
			!strings.Contains(seen.page, "does not answer in time") {
			return fmt.Errorf("%d honest nodes are missing, %d are named", seen.missing, named)
		}
		return nil
	})
	var asking sync.WaitGroup
	for i, how := range liars {
		if how == lies || how == floods {
			asking.Go(func() {
				ask := func() answer { return l.get("alice", fmt.Sprintf("/claim/team-1/x?node=%s", nodeOf(i))) }
				a := ask()
				for strings.Contains(string(a.Body), "for which there is no memory") { // beside those of the others
					a = ask()
				}
				if a.Status != http.StatusBadGateway || !strings.Contains(string(a.Body), "answers too much") {
					t.Errorf("a claim on %s: status %d: %.200s", nodeOf(i), a.Status, a.Body)
				}
			})
		}
	}
	asking.Wait()
	expect.That(t, len(seen.dead) == 0 && len(seen.page) <= 5<<20,
		"honest nodes called dead: %v; %d bytes of the page", seen.dead, len(seen.page))
	peak := l.gateway.memory("VmHWM")
	expect.That(t, peak <= maxPeak, "%.1f MiB at most, want %d", mib(peak), maxPeak>>20)
	t.Logf("ten of %d nodes lie: %.1f MiB at most; the page has %d bytes", *labNodes, mib(peak), len(seen.page))
}

// Every request ends: with a word about a node that sends nothing or too slowly. Requests for such
// a node do not delay those for another one, and a user's requests not those of another user.
func TestSilentNodes(t *testing.T) {
	l := newLab(t, 4, map[int]manner{0: hangs, 1: drips, 2: floods})
	node := func(i int) string { return "/node/" + nodeOf(i) + "/" }
	var asking sync.WaitGroup
	for i, of := range []struct {
		want string
		most time.Duration
	}{{"does not answer in time", firstBytes}, {"sends its answer too slowly", wholeAnswer}} {
		for user, path := range map[string]string{
			"lead": node(i), "alice": fmt.Sprintf("/claim/team-1/train-%d-0?node=%s", i, nodeOf(i)),
		} {
			asking.Go(func() { l.ends(user, path, of.want, of.most) })
		}
	}
	asking.Wait()
	for range 16 {
		asking.Go(func() { l.get("alice", "/claim/team-1/train-0-0?node="+nodeOf(0)) })
	}
	l.gateway.eventually("the claims of the node that hangs are asked for", func() bool { return l.hanging() >= 4 })
	for _, user := range []string{"alice", "bob"} {
		if a := l.get(user, "/claim/team-1/train-3-0?node="+nodeOf(3)); a.Status != http.StatusOK || a.Took > maxFirst+late {
			t.Errorf("%s: a claim on another node: status %d after %v: %.200s", user, a.Status, a.Took, a.Body)
		} else {
			t.Logf("%s: the page of a claim on another node after %v", user, a.Took.Round(time.Millisecond))
		}
	}
	asking.Wait()
}

// ends checks that a request ends in time, with a word about the node.
func (l *lab) ends(user, path, want string, most time.Duration) {
	client := *l.gateway.client
	client.Timeout = 40 * time.Second
	p := *l.gateway
	p.client = &client
	from := time.Now()
	a, err := p.get(path, "Authorization", "Bearer "+user)
	switch took := time.Since(from); {
	case err != nil:
		l.Errorf("%s gave no answer in %v: %v", path, took, err)
	case took > most+late || a.Status != http.StatusGatewayTimeout || !strings.Contains(string(a.Body), want):
		l.Errorf("%s: status %d after %v without %q: %.200s", path, a.Status, took, want, a.Body)
	default:
		l.Logf("%s: status %d after %v: %s", path, a.Status, took.Round(10*time.Millisecond), want)
	}
}

// Each document that is short for the memory it would take is refused, whoever reads it: the page
// of the cluster, that of a claim, and top.
func TestLies(t *testing.T) {
	claim := func(l *lab) (said string, peak int64) {
		a := l.get("alice", "/claim/team-1/x?node="+nodeOf(0))
		return string(a.Body), l.gateway.memory("VmHWM")
	}
	for _, test := range []struct {
		name, lies string
		read       func(l *lab) (said string, peak int64)
		want       string
		most       int64
	}{
		{"2 MiB of claims", many("claims", 2<<20), claim, "answers too much", maxPeak},
		{"8 MiB of claims", many("claims", 8<<20), claim, "answers too much", maxPeak},
		{"a summary of 510 KiB", many("incidents", 510<<10), func(l *lab) (string, int64) {
			var a answer
			l.gateway.eventually("the node is named", func() bool {
				a = l.get("lead", "/")
				return strings.Contains(string(a.Body), "answers too much")
			})
			expect.That(t, len(a.Body) <= 64<<10, "a page of %d bytes for two nodes", len(a.Body))
			return string(a.Body), l.gateway.memory("VmHWM")
		}, "answers too much", maxPeak},
		{"4.2 MB of devices for top", many("devices", 4_200_000), (*lab).top, "answer is too large", maxTop},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, 2, map[int]manner{0: lies})
			l.lies = test.lies
			said, peak := test.read(l)
			expect.That(t, strings.Contains(said, test.want), "no %q in\n%.600s", test.want, said)
			expect.That(t, peak <= test.most && peak != 0, "%.1f MiB at most, want %d", mib(peak), test.most>>20)
			t.Logf("%s: %.1f MiB at most", test.name, mib(peak))
		})
	}
}

// top names the exporters that lie, takes no memory for them, and shows the others. On a busy
// machine, some do not answer within its five seconds.
func TestTopOfLyingNodes(t *testing.T) {
	l := newLab(t, *labNodes, some(*labNodes, 10, lies))
	from := time.Now()
	said, peak := l.top()
	late := strings.Count(said, "deadline exceeded")
	named := strings.Count(said, "answer is too large") + strings.Count(said, "no memory is left for the answer")
	shown := strings.Count(said, "gpu-0")
	expect.That(t, named+late >= 10 && shown <= *labNodes-10 && shown+named+late == *labNodes && shown >= *labNodes/2,
		"top names %d nodes and %d late ones, and shows %d of the others:\n%.600s", named, late, shown, said)
	expect.That(t, peak <= maxTop && peak != 0, "%.1f MiB at most, want %d", mib(peak), maxTop>>20)
	t.Logf("top of %d nodes of which ten lie: %.1f MiB at most, %v; it names %d, and %d late ones", *labNodes, mib(peak),
		time.Since(from).Round(10*time.Millisecond), named, late)
}

// top runs top once for all nodes of the lab. It returns what it prints, and its peak of memory.
func (l *lab) top() (said string, peak int64) {
	args := []string{"top", "--once"}
	for i := range l.nodes {
		args = append(args, "--url="+addressOf(i)+":"+l.port)
	}
	cmd := command(l.Context(), args)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	must.Do(l, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			expect.That(l, err != nil, "the exit status is 0")
			return output.String(), peak
		case <-time.After(2 * time.Millisecond):
			if now, err := live.Memory(cmd.Process.Pid, "VmHWM"); err == nil {
				peak = now
			}
		}
	}
}
