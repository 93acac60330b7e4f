package exposition

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// The cache makes labels once for all scrapes, keeps what differs apart, and drops what no scrape
// asked for in twice the time.
func TestLabelCache(t *testing.T) {
	c, now := newLabelCache(driver.Standard()), jointest.Start()
	base := (*labels)(nil).with("a", "1")
	get := func(base *labels, namesAndValues ...string) *labels {
		c.begin(now)
		defer c.end()
		return c.with(base, namesAndValues...)
	}
	row := get(base, "b", "2")
	expect.Is(t, string(row.appendText(nil)), `a="1",b="2"`, "the labels")
	expect.That(t, get(base, "b", "2") == row, "the labels were made twice")
	for _, other := range []*labels{get(nil, "b", "2"), get(base, "b2", ""), get(base, "b", "2", "", "")} {
		expect.That(t, other != row, "other labels are the same")
	}
	for range 3 { // in use all the time
		now = now.Add(keepLabels + 1)
		expect.That(t, get(base, "b", "2") == row, "labels in use were dropped")
	}
	for range 2 {
		now = now.Add(keepLabels + 1)
		get(nil)
	}
	expect.That(t, get(base, "b", "2") != row, "labels that are not used were kept")
}

// Control characters do not reach a terminal, in no format. Lines of an annotation stay lines.
func TestControlCharacters(t *testing.T) {
	l := (*labels)(nil).with("a", "\x1b[2J\x00é\u009b1m\x7f\tb\nc")
	expect.Is(t, l.text, `a="`+"\ufffd[2J\ufffdé\ufffd1m\ufffd\tb"+`\nc"`, "text")
	l.makeProtobuf()
	wire := string(l.appendProtobuf(nil))
	if want := "\ufffd[2J\ufffdé\ufffd1m\ufffd\tb\nc"; !strings.Contains(wire, want) {
		t.Errorf("wire: %q, want %q", wire, want)
	}
}

// A sequence finds the keys that the previous walk added, in any order, and no others.
func TestSequence(t *testing.T) {
	var s sequence[string, *labels]
	known := map[string]*labels{}
	for i, walk := range [][]string{
		{}, {"a", "b", "c"}, {"a", "b", "c"}, {"c", "x", "a", "y"}, {"x", "x", "a", "x"}, {"x", "b", "a"}, {"a"},
	} {
		s.begin()
		fresh := map[string]*labels{}
		for _, key := range walk {
			var l *labels
			if found := s.find(key); found != nil {
				l = *found
			}
			expect.That(t, l == known[key], "walk %d: of %s %p is found, want %p", i, key, l, known[key])
			if l == nil {
				l = *s.add(key, &labels{text: key})
			}
			fresh[key] = cmp.Or(fresh[key], l)
		}
		s.end()
		known = fresh
		if got := len(s.before); got != len(walk) {
			t.Errorf("walk %d: %d entries are kept of %d", i, got, len(walk))
		}
	}
	s.begin()
	s.end()
	for _, kept := range [][]entry[string, *labels]{s.before, s.now} {
		expect.That(t, !slices.ContainsFunc(kept[:cap(kept)], func(e entry[string, *labels]) bool { return e.made != nil }),
			"labels are held that no walk needs")
	}
}
