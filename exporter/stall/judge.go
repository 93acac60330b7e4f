package stall

import (
	"cmp"
	"maps"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// DefaultAfter is for how long nothing must show life. While one rank uploads a checkpoint the
// others spin: that takes up to seven minutes.
const DefaultAfter = 8 * time.Minute

// How long a claim must show no life, as multiples of after.
const (
	// aloneFactor is that of one rank among others of which most work.
	aloneFactor = 5. / 8
	// unseenFactor is that of a rank that may wait for ranks which this node doesn't see: one that
	// evaluates a model takes up to a quarter of an hour.
	unseenFactor = 2.5
	// worksFactor is that of ranks that may wait for one on this node that works.
	worksFactor = 4.
	// againFactor is that of a wait out of which the claim came by itself before, of its length.
	againFactor = 1.5
	// windowsOfAfter is into how many windows that time is divided.
	windowsOfAfter = 16
)

// Key identifies what is judged: a device of a claim. A claim that comes again under the same name
// is told from it by when it began to hold the device: its UID may become known later.
type Key struct {
	Namespace, Claim string
	Device           driver.ID
	Since            time.Time // in UTC, by the wall clock alone
}

func (k Key) compare(other Key) int {
	return cmp.Or(
		strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Claim, other.Claim),
		k.Device.Compare(other.Device), k.Since.Compare(other.Since),
	)
}

// Reading is what is known of a claim's device at a moment.
type Reading struct {
	Key
	// Group names the claims of one workload on the node: its ranks may wait for each other, and
	// traffic of its network devices is a sign of life of all. Empty: the claim alone.
	Group string
	// Unknown is why the device can't be judged; its traffic counts for its group.
	Unknown Reason
	Values
	// Limit is the power limit that is enforced, and MaxLimit the highest one that the device can
	// have; 0: unknown.
	Limit, MaxLimit float64
	Throttled       bool // for another reason than its power limit
}

// Judge has what is known of the claims so far. It is used by one goroutine at a time.
type Judge struct {
	after, window, interval time.Duration
	books                   map[Key]*book
	idle                    map[driver.ID]idle
	turn                    uint64
	now                     time.Time // of the last Observe

	observed []*book // by the last Observe, of each reading
	verdicts []Verdict

	kept    kept // of an earlier process
	changed bool // since it was written
}

// New returns a judge that knows nothing. Readings come at each interval, and more often. after is
// for how long nothing must show life; 0: [DefaultAfter].
func New(after, interval time.Duration) *Judge {
	after = cmp.Or(after, DefaultAfter)
	return &Judge{
		after: after, window: max(after/windowsOfAfter, interval), interval: max(interval, time.Millisecond),
		books: map[Key]*book{}, idle: map[driver.ID]idle{},
	}
}

// Window returns the length of the windows in which readings are judged: how exactly it is known
// since when nothing has shown life.
func (j *Judge) Window() time.Duration { return j.window }

// Observe adds the readings of a moment, of all devices that are held now, and returns a verdict on
// each that Busy is measured of or that can't be judged, in the same order, until the next call.
// Claims that are not among them are forgotten.
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

// groupKey identifies a group: its name, or the claim if it has none.
type groupKey struct{ name, namespace, claim string }

func (r *Reading) group() groupKey {
	if r.Group != "" {
		return groupKey{name: r.Group}
	}
	return groupKey{namespace: r.Namespace, claim: r.Claim}
}

// group is what the ranks of a workload did in the last window.
type group struct {
	ranks, working, quiet int
	networked             bool // network devices move something now
	network, exchanged    bool // there are some; they moved much
	worked                bool // a rank has worked
}

// conclude gives verdicts.
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
		if g.networked && (b.class == quiet || b.class == unclear) { // of the others, each says so itself
			b.class = working
		}
		if b.fresh {
			b.follow(now)
		}
		b.Verdict = j.verdict(b, g, now)
	}
}

// verdict judges the time up to now.
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
	patience, reason := j.patience(b, g)
	switch {
	case still >= patience:
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

// patience returns for how long a quiet claim must show no life to be stalled. Where that is longer
// than after, the reason says why.
func (j *Judge) patience(b *book, g *group) (time.Duration, Reason) {
	times := func(factor float64) time.Duration { return time.Duration(factor * float64(j.after)) }
	patience, reason := j.after, Unclear
	switch {
	case g.working > g.ranks/2 && g.working > 1:
		patience = times(aloneFactor)
	case g.working > 0:
		patience, reason = times(worksFactor), RankWorks
	case g.exchanged || g.network && !g.worked || b.Fabric && g.ranks == 1:
		patience, reason = times(unseenFactor), RanksUnseen
	}
	if waited := time.Duration(againFactor * float64(b.waited())); waited > patience {
		patience, reason = waited, WaitedBefore
	}
	return patience, reason
}

// idle is what a device draws, and what its links carry, while no kernel runs.
type idle struct {
	Device driver.ID `json:"device"`
	Watts  float64   `json:"watts"`
	Host   float64   `json:"host"` // bytes per second; what reads its counters, for example
}
