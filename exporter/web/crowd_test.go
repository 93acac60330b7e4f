package web

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/web/client"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A full crowd expels the oldest member of the client that has the most.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crowd{max: 3, settled: time.Second}
		here, there := client.Of("192.0.2.1:1"), client.Of("192.0.2.2:1")
		var gone []string
		enter := func(name string, client client.ID, place, expels bool) *member {
			m, expelled := c.enter(client, func() { gone = append(gone, name) })
			expect.That(t, (m != nil) == place && expelled == expels,
				"%s: has a place: %v, want %v; expelled another: %v, want %v", name, m != nil, place, expelled, expels)
			time.Sleep(time.Millisecond)
			return m
		}
		first := enter("here 1", here, true, false)
		enter("here 2", here, true, false)
		left := enter("here 3", here, true, false)
		enter("here 4", here, false, false) // all are young, and its own
		c.renew(first)
		enter("there 1", there, true, true) // in place of here 2, the oldest now
		c.leave(left)
		enter("there 2", there, true, false)
		enter("here 5", here, true, true)     // in place of there 1
		enter("there 3", there, true, true)   // in place of here 1
		enter("there 4", there, false, false) // has the most, and all are young
		time.Sleep(time.Second)
		enter("there 4", there, true, true) // in place of there 2
		if want := []string{"here 2", "there 1", "here 1", "there 2"}; !slices.Equal(gone, want) {
			t.Errorf("expelled: %q, want %q", gone, want)
		}
		c.leave(first)
		c.renew(first) // is gone, and stays so
		expect.That(t, len(c.members) == 3 && c.count[here]+c.count[there] == 3,
			"%d members, counted %v", len(c.members), c.count)
	})
}
