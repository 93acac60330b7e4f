package program

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// A bad flag or file ends the program with status 2 and one line that names it.
func TestBadUsage(t *testing.T) {
	broken := Source{
		Name: "broken", New: func(driver.Host) (driver.Source, error) { return nil, errors.New("was not built in") },
	}
	unbuilt := Source{Name: "unbuilt", New: func(driver.Host) (driver.Source, error) { return nil, driver.ErrNotBuilt }}
	for _, test := range []struct{ args, want string }{
		{"--bogus", "bogus"},
		{"nonsense", "nonsense"},
		{"--sample.interval=1ms", "--sample.interval"},
		{"--sample.interval=often", "--sample.interval: "},
		{"--retention=-1s", "--retention"},
		{"--idle.threshold=1", "--idle.threshold"},
		{"--idle.threshold=NaN", "--idle.threshold"},
		{"--idle.network-threshold=-1", "--idle.network-threshold"},
		{"--max-series=-1", "--max-series"},
		{"--web.telemetry-path=metrics", "--web.telemetry-path"},
		{"--web.telemetry-path=/healthz", "--web.telemetry-path: \"/healthz\" is the path of another page"},
		{"--web.telemetry-path=/api/v1/snapshot", "--web.telemetry-path"},
		{"--web.telemetry-path=/{path...}", "--web.telemetry-path"},
		{"--web.config.file=/does/not/exist", "--web.config.file"},
		{"--no-source.broken --inventory.file=/does/not/exist", "--inventory.file"},
		{"--no-source.broken --source.scrape.config=/does/not/exist", "--source.scrape.config"},
		{"--kube=maybe", "--kube: "},
		{"--kube maybe --max-series=1", "--kube: "},
		{"--max-series=many", "--max-series: "},
		{"--log.level=loud", "--log.level: "},
		{"--max-series=1 --max-series=2", "max-series"},
		{"--pod-label=a.b --pod-label=a/b", "--pod-label"},
		{"--claim-label=", "--claim-label"},
		{"--no-source.broken --kubeconfig=/does/not/exist", "--kubeconfig"},
		{"--source.broken", "--source.broken"},
		{"--no-source.broken --source.unbuilt", "--source.unbuilt: not in this build"},
		{"--no-source.broken --web.kube-authorization --kube=off", "--web.kube-authorization"},
		{"--no-source.broken --incidents.events --kube=off", "--incidents.events: there is no API server"},
		{"--no-source.broken --incidents.events --no-recorder", "--incidents.events: "},
		{"top --interval=0s", "--interval"},
		{"juggle", "unexpected juggle: --help lists the commands and their flags\n"},
		{"chekc --verbose", "chekc"},
		{"--completely.different", "--completely.different': --help lists the commands and their flags\n"},
		{"--filter=x top", "--filter"},
		{"check --filter=x", "--filter"},
		{"top --http.config.file=/does/not/exist", "--http.config.file"},
		{"why", "name"},
	} {
		var stdout, stderr bytes.Buffer
		status := Run(t.Context(), strings.Fields(test.args), []Source{broken, unbuilt}, &stdout, &stderr)
		expect.Is(t, status, exitUsage, "%s: exit status", test.args)
		if said := stderr.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, test.want) {
			t.Errorf("%s: said %q, want one line with %q", test.args, said, test.want)
		}
	}
}

// The help has each flag once, in a group. The help of a command has the flags that the command
// uses.
func TestHelpInGroups(t *testing.T) {
	help := func(args ...string) string {
		var stdout, stderr bytes.Buffer
		if status := Run(t.Context(), args, []Source{{Name: "mine"}}, &stdout, &stderr); status != exitOK {
			t.Errorf("%v: exit status %d: %s", args, status, &stderr)
		}
		return stdout.String()
	}
	all, top, check := help("--help"), help("top", "--help"), help("help", "check")
	for text, in := range map[string][3]bool{ // of the program, top, check
		"\nHTTP server:\n":        {true, false, false},
		"\nNode:\n":               {true, false, true},
		"\nSources:\n":            {true, false, true},
		"  --[no-]source.mine ":   {true, false, true},
		"  --sample.interval=1s ": {true, false, false},
		"  --log.level=info ":     {true, false, true},
		"  --kubeconfig=FILE ":    {true, true, true},
		"\n  claim ":              {false, false, false},
		"\n  why ":                {true, false, false},
		"\n  incidents ":          {false, false, false},
		"  --once ":               {false, true, false},
		"  --strict ":             {false, false, true},
		"\n  top ":                {true, false, false},
		"environment variable":    {true, false, false},
		"  --web.telemetry-path=": {true, false, false},
	} {
		for i, said := range []string{all, top, check} {
			want := 0
			if in[i] {
				want = 1
			}
			if n := strings.Count(said, text); n != want {
				t.Errorf("help %d has %q %d times, want %d:\n%s", i, text, n, want, said)
			}
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, flag := range []string{"--help", "--version"} {
		var stdout, stderr bytes.Buffer
		if status := Run(t.Context(), []string{flag}, nil, &stdout, &stderr); status != exitOK {
			t.Errorf("%s: exit status %d: %s", flag, status, &stderr)
		}
		expect.That(t, strings.Contains(stdout.String(), "dra-exporter"), "%s: said %q", flag, &stdout)
	}
}

// A source that this build does not have is no error unless its flag is set.
func TestSourceNotBuilt(t *testing.T) {
	list := []Source{{Name: "unbuilt", New: func(driver.Host) (driver.Source, error) { return nil, driver.ErrNotBuilt }}}
	for _, env := range []string{"", "true"} {
		t.Setenv("DRA_EXPORTER_SOURCE_UNBUILT", env)
		o, _, err := parse(nil, list, io.Discard)
		must.Do(t, err)
		sources, err := makeSources(o, list, &node.Node{})
		expect.That(t, (env != "") == (err != nil) && len(sources) == 0,
			"with the environment variable %q: %d sources, error %v", env, len(sources), err)
	}
}

// A source that is returned together with the error that it is not built is used, unless its flag
// is set.
func TestSourceInPlace(t *testing.T) {
	list := []Source{{Name: "unbuilt", New: func(driver.Host) (driver.Source, error) {
		return sim.NewSource(nil, sim.Options{}), driver.ErrNotBuilt
	}}}
	for _, args := range [][]string{nil, {"--source.unbuilt"}} {
		o, _, err := parse(args, list, io.Discard)
		must.Do(t, err)
		sources, err := makeSources(o, list, &node.Node{})
		if asked := len(args) > 0; asked != (err != nil) || asked != (len(sources) == 0) {
			t.Errorf("%v: %d sources, error %v", args, len(sources), err)
		}
	}
}

// A source with Last set comes after the scraped endpoints, no matter where it is in the list.
func TestLastSource(t *testing.T) {
	config := filepath.Join(t.TempDir(), "scrape.yaml")
	text := "endpoints: [{name: there, url: 'http://127.0.0.1:1/metrics', preset: dcgm-exporter}]\n"
	must.Do(t, os.WriteFile(config, []byte(text), 0o600))
	list := []Source{{Name: "last", Last: true, New: idle("last").open}, {Name: "first", New: idle("first").open}}
	for _, tc := range []struct {
		args []string
		want string
	}{{nil, "first last"}, {[]string{"--source.scrape.config=" + config}, "first scrape/there last"}} {
		o, _, err := parse(tc.args, list, io.Discard)
		must.Do(t, err)
		sources, err := makeSources(o, list, &node.Node{})
		must.Do(t, err)
		var got []string
		for _, s := range sources {
			got = append(got, s.Name())
		}
		expect.That(t, strings.Join(got, " ") == tc.want, "sources %q, want %s", got, tc.want)
	}
}

// idle is a source that reads nothing.
type idle string

func (n idle) open(driver.Host) (driver.Source, error)       { return n, nil }
func (n idle) Name() string                                  { return string(n) }
func (idle) Sample(context.Context) ([]driver.Sample, error) { return nil, nil }

// Every flag is an environment variable too.
func TestEnvironment(t *testing.T) {
	t.Setenv("DRA_EXPORTER_SAMPLE_INTERVAL", "1ms")
	var stdout, stderr bytes.Buffer
	if status := Run(t.Context(), nil, nil, &stdout, &stderr); status != exitUsage ||
		!strings.Contains(stderr.String(), "--sample.interval: 1ms") {
		t.Errorf("exit status %d, said %q", status, &stderr)
	}
	t.Setenv("DRA_EXPORTER_SAMPLE_INTERVAL", "often")
	stderr.Reset()
	if status := Run(t.Context(), nil, nil, &stdout, &stderr); status != exitUsage ||
		!strings.Contains(stderr.String(), "$DRA_EXPORTER_SAMPLE_INTERVAL: ") {
		t.Errorf("exit status %d, said %q", status, &stderr)
	}
}

func TestReferenceNamesSources(t *testing.T) {
	var stdout, stderr bytes.Buffer
	sources := []Source{{Name: "mine", Fills: []driver.Quantity{driver.Power}}}
	status := Run(t.Context(), []string{"metrics-reference"}, sources, &stdout, &stderr)
	must.That(t, status == exitOK, "exit status %d: %s", status, &stderr)
	for line := range strings.Lines(stdout.String()) {
		if strings.HasPrefix(line, "| `dra_device_power_watts`") && strings.Contains(line, "| mine, scrape |") {
			return
		}
	}
	t.Error("the reference does not say that power comes from the source mine")
}

// The page shows for each source whether it is down, and for sources of devices which quantities
// they can read.
func TestSourceStates(t *testing.T) {
	power := []driver.Quantity{driver.Power}
	list := []Source{{Name: "other"}, {Name: "failing", Fills: power}}
	got := sourceStates([]driver.Source{failing{}}, list, map[string]driver.Reason{
		"podresources": "", "failing": driver.ReasonGPULost,
	})
	want := []present.Source{{Name: "failing", Fills: power, Down: driver.ReasonGPULost}, {Name: "podresources"}}
	expect.That(t, reflect.DeepEqual(got, want), "%+v, want %+v", got, want)
}

// A source with an address is off unless an address is given. Its constructor checks the address.
// Its switches are separate flags.
func TestAddressedSource(t *testing.T) {
	list := []Source{{
		Name: "far", Addressed: true, Switches: []Switch{{Name: "more"}, {Name: "most"}},
		New: func(p driver.Host) (driver.Source, error) {
			return nil, fmt.Errorf("%s %v", p.Address, p.Switches) //nolint:err113 // what the test looks at
		},
	}}
	for _, tc := range []struct {
		args []string
		want string // error; "" for none
	}{
		{nil, ""},
		{[]string{"--source.far=off", "--source.far.more"}, ""},
		{[]string{"--source.far=here:1"}, "--source.far: here:1 []"},
		{[]string{"--source.far=here:1", "--source.far.most"}, "--source.far: here:1 [most]"},
	} {
		o, _, err := parse(tc.args, list, io.Discard)
		must.Do(t, err)
		sources, err := makeSources(o, list, &node.Node{})
		if got := fmt.Sprint(err); len(sources) != 0 || got != cmp.Or(tc.want, "<nil>") {
			t.Errorf("%v: %d sources, error %q, want %q", tc.args, len(sources), got, tc.want)
		}
	}
}
