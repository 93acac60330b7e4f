package stall

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// DefaultAfter is the default time without signs of progress. While one rank uploads a checkpoint,
// the others spin for up to seven minutes.
const DefaultAfter = 8 * time.Minute

// The time without signs of progress after which a claim is stalled, as multiples of after.
const (
	// longestFactor applies while the claim may wait for work that is not measured: ranks that
	// prepare data on one processor take up to 40 minutes.
	longestFactor = 5.
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
	// traffic of its network devices is progress of all ranks. Empty: the claim is alone.
	Group string
	// Pods are the UIDs of the claim's pods.
	Pods []string
	// Elsewhere reports that the workload has ranks on other nodes or waits for requests, or that
	// this is not known.
	Elsewhere bool
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
	pods                    map[string]pod
	turn                    uint64
	now                     time.Time // of the last Observe

	observed []*book // one for each reading of the last Observe
	verdicts []Verdict

	kept    kept // state of an earlier process
	changed bool // changed since it was last written
}

// New returns a judge without history. interval is the longest time between readings. after is the
// time without signs of progress; 0: [DefaultAfter].
func New(after, interval time.Duration) *Judge {
	after = cmp.Or(after, DefaultAfter)
	return &Judge{
		after: after, window: max(after/windowsOfAfter, interval), interval: max(interval, time.Millisecond),
		books: map[Key]*book{}, idle: map[driver.ID]idle{},
	}
}

// Window returns the length of a window, which is the accuracy of the start of a stall, and the
// time between two readings of the pods on the host.
func (j *Judge) Window() time.Duration { return j.window }

// Observe adds the readings of all held devices at one time. It returns verdicts in the same order,
// valid until the next call: for readings in which Busy is measured, or which can't be judged.
// Other claims are forgotten. Unless changed, claims and verdicts are those of the previous call.
func (j *Judge) Observe(now time.Time, readings []Reading) (verdicts []Verdict, changed bool) {
	j.forget(now)
	j.turn, j.now = j.turn+1, now
	seen, ended := 0, false
	changed = len(readings) != len(j.observed)
	books := slices.Grow(j.observed[:0], len(readings))
	for i := range readings {
		r := &readings[i]
		b := j.bookOf(r, i, now)
		changed = changed || b != j.observed[i] || (b.unknown == NotJudged) != (r.Unknown == NotJudged)
		if b.turn != j.turn {
			seen++
		}
		b.turn, b.group, b.unknown, b.pods, b.elsewhere = j.turn, r.group(), r.Unknown, r.Pods, r.Elsewhere
		if b.Verdict.Unknown == NotJudged && r.Unknown != NotJudged {
			b.Verdict.Unknown = cmp.Or(r.Unknown, TooShort)
		}
		books = append(books, b)
		if b.add(r, now) >= j.window {
			ended = true
			b.measure(j, r, now)
		}
	}
	if seen < len(j.books) {
		maps.DeleteFunc(j.books, func(_ Key, b *book) bool { return b.turn != j.turn })
	}
	if ended {
		j.changed, changed = true, true
		j.conclude(books, now)
	}
	j.observed = books
	if changed {
		j.verdicts = j.verdicts[:0]
		for _, b := range books {
			j.verdicts = append(j.verdicts, b.Verdict)
		}
	}
	return j.verdicts, changed
}

// bookOf returns the book of a claim, which is most likely that of the reading at the same index of
// the last call.
func (j *Judge) bookOf(r *Reading, i int, now time.Time) *book {
	if i < len(j.observed) && j.observed[i].Key == r.Key {
		return j.observed[i]
	}
	b := j.books[r.Key]
	if b == nil {
		b = j.adopt(r.Key)
	}
	if b == nil {
		b = &book{Key: r.Key, Verdict: Verdict{Unknown: cmp.Or(r.Unknown, TooShort), Quiet: NoQuiet, Since: now}}
		j.books[r.Key] = b
	}
	return b
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
	ranks, working, still, resting, busy int

	networked bool // its network devices have traffic in both directions
	network   bool // it has network devices
	exchanged bool // they had much traffic
	worked    bool // a rank has worked
	pods      map[string]bool
	peers     []Peer
	host      host
}

// conclude makes the verdicts.
func (j *Judge) conclude(books []*book, now time.Time) {
	groups := map[groupKey]*group{}
	for _, b := range books {
		g := groups[b.group]
		if g == nil {
			g = &group{pods: map[string]bool{}}
			groups[b.group] = g
		}
		g.add(b)
	}
	for _, g := range groups {
		g.host = j.hostOf(g, now)
	}
	for _, b := range books {
		g := groups[b.group]
		if g.networked && (b.class == quiet || b.class == unclear) { // other classes speak for themselves
			b.class, b.Progress, b.Shows = working, now, []Signal{Receive, Send}
		}
		if b.fresh {
			b.follow(now)
		}
		if !b.QuietSince.IsZero() && (g.host.class == hostWorks || g.working > 0) {
			b.AliveUntil = now
		}
		if g.ranks > 1 && b.isRank() && len(g.peers) < maxPeers {
			g.peers = append(g.peers, Peer{b.Claim, b.Device, b.class.String()})
		}
	}
	for _, b := range books {
		b.conclude(j.verdict(b, groups[b.group], now), now)
	}
}

// add adds what a device did in the last window.
func (g *group) add(b *book) {
	for _, uid := range b.pods {
		g.pods[uid] = true
	}
	g.networked = g.networked || b.networked()
	g.network = g.network || b.level.Measured(Send) || b.level.Measured(Receive)
	g.exchanged = g.exchanged || b.Network
	if !b.isRank() {
		return
	}
	g.ranks++
	g.worked = g.worked || b.reference() > 0
	if b.level[Busy] >= restingBelow {
		g.busy++
	}
	switch b.class {
	case working:
		g.working++
	case quiet:
		g.still++
	case resting:
		g.resting++
	case pausing, unclear, unmeasured:
	}
}

// isRank reports whether the device may run a rank of the workload.
func (b *book) isRank() bool { return b.level.Measured(Busy) && b.unknown != NotJudged }

// verdict returns the verdict at a time.
func (j *Judge) verdict(b *book, g *group, now time.Time) Verdict {
	v := Verdict{
		Quiet: NoQuiet, Host: g.host.read, HostShows: g.host.shows, Ranks: g.ranks, Working: g.working, Still: g.still,
		Peers: g.peers,
	}
	if b.unknown != Known {
		v.Unknown = b.unknown
		return v
	}
	if b.class == working {
		v.Quiet = 0
	}
	if !b.Progress.IsZero() && b.class != working {
		v.For = now.Sub(b.Progress)
	}
	if !b.QuietSince.IsZero() {
		v.For = max(0, now.Sub(driver.Later(b.QuietSince, b.AliveUntil)))
		needed, reason := j.silenceNeeded(b, g)
		if reason != NoHost && reason != HostWorks {
			v.Quiet = v.For
		}
		if v.For >= needed && needed > 0 {
			v.Stalled = b.silent()
			return v
		}
		if now.Sub(b.QuietSince) >= j.after {
			v.Unknown = reason
			return v
		}
	}
	if b.Progress.IsZero() || now.Sub(b.Progress) >= j.after || b.class == unmeasured && b.why == NoBusy {
		v.Unknown, v.Missing = cmp.Or(b.why, TooShort), b.missing
		if v.Unknown == Idle && g.host.class == hostWorks && g.host.more {
			v.Unknown = HostWorks
		}
		return v
	}
	v.Progress = b.Shows
	return v
}

// silenceNeeded returns the time without signs of progress after which a quiet claim is stalled, 0
// if this can't be known here. If it is longer than after, the reason says why.
func (j *Judge) silenceNeeded(b *book, g *group) (time.Duration, Reason) {
	longest := time.Duration(longestFactor * float64(j.after))
	waited := time.Duration(againFactor * float64(b.waited()))
	switch {
	case g.host.class == hostUnknown:
		return 0, NoHost
	case g.host.class == hostWorks:
		return 0, HostWorks
	case g.working > 0:
		return 0, RankWorks
	case b.elsewhere || g.exchanged || g.network && !g.worked || b.Fabric && g.ranks == 1:
		if g.host.class == hostSpins {
			return 0, HostSpins
		}
		return 0, RanksUnseen
	case g.host.class == hostSpins && b.unreferenced:
		return 0, HostSpins // the thread may compute what the first kernel waits for
	case g.host.class == hostSpins:
		return max(longest, waited), HostSpins
	case g.resting > 0:
		return max(longest, waited), RankIdles
	case b.unreferenced:
		return max(longest, waited), NoReference
	case waited > j.after:
		return waited, WaitedBefore
	default:
		return j.after, TooShort
	}
}

// conclude replaces the verdict.
func (b *book) conclude(v Verdict, now time.Time) {
	state, before := v.State(), b.Verdict.State()
	if state == before {
		v.Since, v.Before = b.Verdict.Since, b.Verdict.Before
	} else {
		v.Since, v.Before = now, before
	}
	b.Verdict = v
}

// idle has a device's power and traffic while no kernel runs.
type idle struct {
	Device driver.ID `json:"device"`
	// Watts is the power while its clocks are low, and Ready that with a context open, which keeps
	// them high; 0: unknown.
	Watts float64 `json:"watts"`
	Ready float64 `json:"ready"`
	Host  float64 `json:"host"` // bytes per second over PCIe, such as from reading its counters
}

// sorted returns the signals of which f is true.
func sorted(f func(Signal) bool, of ...Signal) []Signal {
	return slices.DeleteFunc(slices.Clone(of), func(s Signal) bool { return !f(s) })
}
