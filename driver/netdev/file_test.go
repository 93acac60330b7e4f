package netdev

import (
	"bytes"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

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
