package exporter

import (
	"testing"
)

// The cache makes labels once for all scrapes, tells what differs apart, and forgets what nobody asked for in twice
// the time.
func TestLabelCache(t *testing.T) {
	c, now := newLabelCache(), unixTime()
	c.tick(now)
	base := (*labels)(nil).with("a", "1")
	row := c.with(base, "b", "2")
	if row.text != `a="1",b="2"` {
		t.Errorf("the labels are %s", row.text)
	}
	if c.with(base, "b", "2") != row {
		t.Error("the labels were made twice")
	}
	for _, other := range []*labels{c.with(nil, "b", "2"), c.with(base, "b2", ""), c.with(base, "b", "2", "", "")} {
		if other == row {
			t.Error("other labels are the same")
		}
	}
	for range 3 { // in use all the time
		now = now.Add(forget + 1)
		c.tick(now)
		if c.with(base, "b", "2") != row {
			t.Error("labels in use were forgotten")
		}
	}
	for range 2 {
		now = now.Add(forget + 1)
		c.tick(now)
	}
	if c.with(base, "b", "2") == row {
		t.Error("labels that nobody uses were kept")
	}
}
