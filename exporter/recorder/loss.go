package recorder

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// service is the history of a source.
type service struct {
	most   int           // highest number of devices with readings
	failed driver.Reason // at the previous snapshot
	since  time.Time     // since when it has failed for this reason
	down   bool          // its failure has been reported
}

// noneOfAll is the code for a source that answers, and has no readings of any device although it
// had those of several.
const noneOfAll = string(driver.ReasonNoData)

// observeSources returns the sources that have begun to fail as a whole. A source whose only device
// the driver has lost does not count.
func (d *detector) observeSources(s *book.Snapshot) []happening {
	var out []happening
	for i := range s.Sources {
		of := &s.Sources[i]
		known := d.sources[of.Name]
		if of.Failed != known.failed || of.Failed == "" {
			known.failed, known.since = of.Failed, s.Time
		}
		known.most = max(known.most, of.Read)
		code := ""
		switch {
		case known.most == 0 || of.Failed == driver.ReasonGPULost:
		case of.Down():
			code = string(of.Failed)
		case of.Read == 0 && known.most > 1:
			code = noneOfAll
		}
		if code != "" && !known.down {
			onset := s.Time
			if of.Failed != "" && s.Time.Sub(known.since) <= evidence {
				onset = known.since
			}
			out = append(out, happening{kind: SourceDown, code: code, source: of.Name, at: s.Time, onset: onset, count: 1})
		}
		known.down = code != ""
		d.sources[of.Name] = known
	}
	return out
}

// sourcesOf returns the names of the sources with readings of a device, without suffixes. It
// returns before if they are the same.
func sourcesOf(d *book.Device, before []string) []string {
	var room [4]string
	out := room[:0]
	for i := range d.Values {
		name := d.Values[i].Origin.Source
		if d.Values[i].Quantity != driver.Health && name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if slices.Equal(out, before) {
		return before
	}
	return slices.Clone(out)
}

// follow adds the history from the previous condition.
func (c *condition) follow(before *condition, failures []happening) {
	if before.health != "" && c.health == "" {
		c.health = before.health // not read: unchanged
	}
	c.offBus = before.offBus
	for i := range failures {
		if failures[i].kind == XID && xid.Of(failures[i].code, xid.NoSeverity).First == xid.OffBus {
			c.offBus = failures[i].at
		}
	}
	if c.up != book.UpNow {
		c.sources, c.listed, c.downSince, c.lost = before.sources, before.listed, before.downSince, before.lost
	}
}

// The codes of a lost device: the evidence besides being unreadable.
const (
	lostByDriver = string(driver.ReasonGPULost) // the driver reports an error that means a loss
	lostByBus    = "xid_79"                     // the driver's log says that it fell off the bus
	lostBySource = "absent"                     // its source answers without it
	lostUnread   = "unreadable"                 // its source answers, but can't read it
	lostBySlices = "unlisted"                   // the inventory no longer has it
)

// offBusWithin is the longest time between an XID 79 and the device becoming unreadable, in either
// order.
const offBusWithin = 5 * time.Minute

// lossText describes the evidence of a loss.
func lossText(code string) string {
	return cmp.Or(map[string]string{
		lostByDriver: "its driver says so", lostByBus: "it fell off the bus (XID 79)",
		lostUnread: "its source answers and can't read it", lostBySlices: "its driver no longer lists it",
	}[code], "its source answers without it")
}

// loss returns a happening if a device is newly lost: it was readable, is not any more, and there
// is evidence besides the missing answer.
func (d *detector) loss(now *condition, of *book.Device, s *book.Snapshot) []happening {
	if now.up != book.Down {
		now.downSince, now.lost = time.Time{}, false
		return nil
	}
	if len(now.sources) == 0 {
		return nil // it has never been readable
	}
	if now.downSince.IsZero() {
		now.downSince = s.Time
	}
	if now.lost {
		return nil
	}
	witness := d.witnessOf(now, of)
	if witness == "" {
		return nil
	}
	now.lost = true
	return []happening{{kind: DeviceLost, code: witness, device: of, at: s.Time, onset: now.downSince, count: 1}}
}

// witnessOf returns the evidence that an unreadable device is lost; "": none. A source that answers
// with impossible values, or with what is no number, has not lost the device; but a device of which
// it knows nothing, while it reads others, is gone, whatever the others say.
func (d *detector) witnessOf(now *condition, of *book.Device) string {
	if away := now.downSince.Sub(now.offBus); !now.offBus.IsZero() && away.Abs() <= offBusWithin {
		return lostByBus
	}
	unreadable := of.Device.Missing == join.MissingUnreadable // its source knows it
	answer := true
	for _, name := range now.sources {
		source := d.sources[name]
		if source.failed == driver.ReasonGPULost && unreadable {
			return lostByDriver
		}
		garbled := source.failed == driver.ReasonMalformed && of.Device.Missing != join.MissingNoMatch
		answer = answer && !source.down && !garbled
	}
	switch {
	case now.listed && of.Entry.Unlisted:
		return lostBySlices
	case !answer, of.Device.Missing == join.MissingRejected:
		return ""
	case unreadable:
		return lostUnread
	default:
		return lostBySource
	}
}
