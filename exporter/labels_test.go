package exporter

import (
	"testing"
	"time"
)

// One pair serves all series that have it, one row all scrapes; what nobody asked for in twice the time is made anew.
func TestLabelPool(t *testing.T) {
	p, now := newLabelPool(), unixTime()
	p.tick(now)
	pair := p.with(nil, "a", "1")[0]
	row := p.row(nil, "b", "2", "a", "1")
	if row[0] != pair || row[1].GetName() != "b" {
		t.Errorf("the row is %v, and its first pair not the one that there was", row)
	}
	if other := p.row(nil, "b", "2", "a", "1"); &other[0] != &row[0] {
		t.Error("the row was made twice")
	}
	if other := p.row(nil, "b", "2a", "", "1"); len(other) != 2 || other[1].GetValue() != "2a" {
		t.Errorf("another row is %v", other)
	}
	for range 3 { // in use all the time
		now = now.Add(forget + time.Second)
		p.tick(now)
		if other := p.with(p.row(nil, "b", "2", "a", "1")[:1], "c", "3"); other[0] != pair {
			t.Error("a pair in use was forgotten")
		}
		p.with(nil, "a", "1")
	}
	for range 2 {
		now = now.Add(forget + time.Second)
		p.tick(now)
	}
	if p.with(nil, "a", "1")[0] == pair {
		t.Error("a pair that nobody uses was kept")
	}
}
