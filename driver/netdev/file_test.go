package netdev

import (
	"bytes"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestParseSpeed(t *testing.T) {
	for _, tc := range []struct {
		line string
		want float64
		err  error
	}{
		{"1000", 125e6, nil},
		{"800000", 100e9, nil},
		{"-1", 0, nil},         // unknown, in today's kernels
		{"4294967295", 0, nil}, // unknown, in earlier ones
		{"2147483647", 0, nil},
		{"0", 0, nil},
		{"", 0, strconv.ErrSyntax},
		{"1e3", 0, strconv.ErrSyntax},
		{"9223372036854775808", 0, strconv.ErrRange},
	} {
		if got, err := parseSpeed([]byte(tc.line)); got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("parseSpeed(%q) = %v, %v; want %v, %v", tc.line, got, err, tc.want, tc.err)
		}
	}
}

func TestIsRepresentor(t *testing.T) {
	for name, want := range map[string]bool{
		"p0": false, "p0s1": false, "c1p0": false, "": false, "c": false, "port": false,
		"pf0": true, "pf0vf3": true, "pf1sf88": true, "c1pf0vf3": true, "c12pf0": true,
	} {
		expect.Is(t, isRepresentor(name), want, "isRepresentor(%q)", name)
	}
}

func FuzzParse(f *testing.F) {
	tree := must.Get(os.ReadFile("testdata/server.tree"))(f)
	for line := range strings.Lines(string(tree)) {
		if _, content, ok := strings.Cut(line, ": "); ok {
			f.Add([]byte(content))
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		value := bytes.TrimSpace(content)
		if isRepresentor(string(value)) && !bytes.Contains(value, []byte("pf")) {
			t.Errorf("isRepresentor(%q)", value)
		}
		if speed, err := parseSpeed(value); speed < 0 || speed > math.MaxInt32*125e3 || err != nil && speed != 0 {
			t.Errorf("parseSpeed(%q) = %v, %v", value, speed, err)
		}
	})
}

// TestCounterProperties: over any history of the kernel's values, our counter never falls, and
// rises by the rise of the kernel's. A value that returns to what it was before a reset, at once,
// would be no reset.
func TestCounterProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := counter{fromZero: rapid.Bool().Draw(t, "from zero")}
		raw := rapid.Uint64Range(0, 1<<40).Draw(t, "first")
		c.advance(raw, time.Unix(1, 0))
		first, since := c.Value, c.since
		switch {
		case c.fromZero && (first != 0 || !since.Equal(time.Unix(1, 0))):
			t.Fatalf("starts at %v since %v, want 0 at once", first, since)
		case !c.fromZero && (first != raw || !since.IsZero()):
			t.Fatalf("starts at %v since %v, want the kernel's %d", first, since, raw)
		}
		want, fall := first, uint64(0)
		for step := range rapid.IntRange(1, 20).Draw(t, "steps") {
			reset := rapid.Bool().Draw(t, "reset")
			rise := rapid.Uint64Range(0, 1<<30).Draw(t, "rise")
			if reset && rise < raw { // otherwise the reset is invisible
				fall = raw - rise
				raw = rise
			} else {
				if fall > 0 {
					rise = min(rise, max(fall/2, 1)-1)
				}
				raw += rise
			}
			want += rise
			c.advance(raw, time.Unix(int64(step)+2, 0))
			must.That(t, c.Value == want && c.since.Equal(since),
				"step %d: %v since %v, want %v since %v", step, c.Value, c.since, want, since)
		}
	})
}
