package stall

import (
	"cmp"
	"maps"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// DefaultAfter is the default time without signs of life. While one rank uploads a checkpoint, the
// others spin for up to seven minutes.
const DefaultAfter = 8 * time.Minute

// The time without signs of life after which a claim is stalled, as multiples of after.
const (
	// aloneFactor applies to one rank if most others work.
	aloneFactor = 5. / 8
	// unseenFactor applies to ranks that may wait for ranks on other nodes: one rank that evaluates a
	// model takes up to a quarter of an hour.
	unseenFactor = 2.5
	// worksFactor applies to ranks that may wait for a working rank on this node.
	worksFactor = 4.
	// againFactor applies to the length of an earlier wait that ended by itself.
	againFactor = 1.5
	// windowsOfAfter is the number of windows in after.
	windowsOfAfter = 16
)

// Key identifies what is judged: a claim on a device. The time since when the claim has held the
// device distinguishes later claims of the same name, since their UIDs may become known later.
type Key struct {
	Namespace, Claim string
	Device           driver.ID
	Since            time.Time // in UTC, without a monotonic reading
}

func (k Key) compare(other Key) int {
	return cmp.Or(
		strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Claim, other.Claim),
		k.Device.Compare(other.Device), k.Since.Compare(other.Since),
	)
}

// Reading has the values of a claim's device at one time.
type Reading struct {
	Key
	// Group names the claims of one workload on the node. Its ranks may wait for each other, and
	// traffic of its network devices is a sign of life of all ranks. Empty: the claim is alone.
	Group string
	// Unknown is why the device can't be judged. Its traffic still counts for its group.
	Unknown Reason
	Values
	// Limit is the enforced power limit, and MaxLimit the highest one possible, in watts; 0: unknown.
	Limit, MaxLimit float64
	Throttled       bool // for a reason other than the power limit
}

// Judge keeps the history of claims. It is not safe for concurrent use.
type Judge struct {
	after, window, interval time.Duration
	books                   map[Key]*book
	idle                    map[driver.ID]idle
	turn                    uint64
	now                     time.Time // of the last Observe

	observed []*book // one for each reading of the last Observe
	verdicts []Verdict

	kept    kept // state of an earlier process
	changed bool // changed since it was last written
}

// New returns a judge without history. interval is the longest time between readings. after is the
// time without signs of life; 0: [DefaultAfter].
func New(after, interval time.Duration) *Judge {
	after = cmp.Or(after, DefaultAfter)
	return &Judge{
		after: after, window: max(after/windowsOfAfter, interval), interval: max(interval, time.Millisecond),
		books: map[Key]*book{}, idle: map[driver.ID]idle{},
	}
}

// Window returns the length of a window, which is the accuracy of the start of a stall.
func (j *Judge) Window() time.Duration { return j.window }

// Observe adds the readings of all held devices at one time. It returns verdicts in the same order,
// valid until the next call: for readings in which Busy is measured, or which can't be judged.
// Other claims are forgotten.
func (j *Judge) Observe(now time.Time, readings []Reading) []Verdict {
	j.forget(now)
	j.turn, j.now = j.turn+1, now
	ended := false
	books := j.observed[:0]
	for i := range readings {
		r := &readings[i]
		b := j.books[r.Key]
		if b == nil {
			b = j.adopt(r.Key)
		}
		if b == nil {
			b = &book{Key: r.Key, Verdict: Verdict{Unknown: cmp.Or(r.Unknown, TooShort)}}
			j.books[r.Key] = b
		}
		b.turn, b.group, b.unknown = j.turn, r.group(), r.Unknown
		books = append(books, b)
		if b.add(r, now) >= j.window {
			ended = true
			b.measure(j, r, now)
		}
	}
	maps.DeleteFunc(j.books, func(_ Key, b *book) bool { return b.turn != j.turn })
	if ended {
		j.changed = true
		j.conclude(books, now)
	}
	j.observed, j.verdicts = books, j.verdicts[:0]
	for _, b := range books {
		j.verdicts = append(j.verdicts, b.Verdict)
	}
	return j.verdicts
}

// groupKey identifies a group by its name, or by the claim if it has none.
type groupKey struct{ name, namespace, claim string }

func (r *Reading) group() groupKey {
	if r.Group != "" {
		return groupKey{name: r.Group}
	}
	return groupKey{namespace: r.Namespace, claim: r.Claim}
}

// group is the activity of a workload's ranks in the last window.
type group struct {
	ranks, working, quiet int
	networked             bool // network devices have traffic now
	network, exchanged    bool // it has network devices; they had much traffic
	worked                bool // a rank has worked
}

// conclude makes the verdicts.
func (j *Judge) conclude(books []*book, now time.Time) {
	groups := map[groupKey]*group{}
	for _, b := range books {
		g := groups[b.group]
		if g == nil {
			g = &group{}
			groups[b.group] = g
		}
		g.networked = g.networked || b.moves(Network)
		g.network = g.network || b.level.Measured(Network)
		g.exchanged = g.exchanged || b.Network
		g.worked = g.worked || b.reference() > 0
		switch b.class {
		case working:
			g.ranks, g.working = g.ranks+1, g.working+1
		case quiet:
			g.ranks, g.quiet = g.ranks+1, g.quiet+1
		case resting, pausing, unclear, unmeasured:
			if b.level.Measured(Busy) {
				g.ranks++
			}
		}
	}
	for _, b := range books {
		g := groups[b.group]
		if g.networked && (b.class == quiet || b.class == unclear) { // other classes speak for themselves
			b.class = working
		}
		if b.fresh {
			b.follow(now)
		}
		b.Verdict = j.verdict(b, g, now)
	}
}

// verdict returns the verdict at a time.
func (j *Judge) verdict(b *book, g *group, now time.Time) Verdict {
	switch {
	case b.unknown != Known:
		return Verdict{Unknown: b.unknown}
	case b.class == unmeasured:
		return Verdict{Unknown: b.why}
	case b.DullSince.IsZero() && b.blind:
		return Verdict{Unknown: NoReference}
	case b.DullSince.IsZero():
		return Verdict{}
	}
	dull, still := now.Sub(b.DullSince), time.Duration(0)
	if !b.QuietSince.IsZero() {
		still = now.Sub(b.QuietSince)
	}
	silence, reason := j.silenceNeeded(b, g)
	switch {
	case still >= silence:
		return Verdict{Stalled: b.silent(), For: still}
	case still >= j.after:
		return Verdict{Unknown: reason, For: still}
	case dull >= j.after:
		return Verdict{Unknown: cmp.Or(b.why, Unclear), For: dull}
	case b.reference() == 0:
		return Verdict{Unknown: TooShort, For: dull}
	default:
		return Verdict{For: dull}
	}
}

// silenceNeeded returns the time without signs of life after which a quiet claim is stalled. If it
// is longer than after, the reason says why.
func (j *Judge) silenceNeeded(b *book, g *group) (time.Duration, Reason) {
	times := func(factor float64) time.Duration { return time.Duration(factor * float64(j.after)) }
	silence, reason := j.after, Unclear
	switch {
	case g.working > g.ranks/2 && g.working > 1:
		silence = times(aloneFactor)
	case g.working > 0:
		silence, reason = times(worksFactor), RankWorks
	case g.exchanged || g.network && !g.worked || b.Fabric && g.ranks == 1:
		silence, reason = times(unseenFactor), RanksUnseen
	}
	if waited := time.Duration(againFactor * float64(b.waited())); waited > silence {
		silence, reason = waited, WaitedBefore
	}
	return silence, reason
}

// idle has a device's power and traffic while no kernel runs.
type idle struct {
	Device driver.ID `json:"device"`
	Watts  float64   `json:"watts"`
	Host   float64   `json:"host"` // bytes per second, such as from reading its counters
}
