package holders

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// PodState is the state of a pod, and the fact that led to it.
type PodState struct {
	State State
	By    int
}

// String returns the state's name.
func (s State) String() string {
	return [numStates]string{"unknown", "waiting", "bound", "running", "ending", "ended", "deleted"}[s]
}

// The facts, for tests. They name the rows of the table.
const (
	Relisted = int(relisted)
	Listed   = int(listed)
	NumFacts = int(numFacts)
)

// States returns the state of each pod, by UID.
func (b *Book) States() map[string]PodState {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]PodState, len(b.evidence.pods))
	for uid, p := range b.evidence.pods {
		out[uid] = PodState{State: p.state, By: int(p.by)}
	}
	return out
}

// Evidence returns the book's evidence.
func (b *Book) Evidence() *Evidence { return &b.evidence }

// Clone returns a book with a copy of the evidence. Its maps are new, so that their order differs.
func (b *Book) Clone() *Book {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &Book{
		nextChange: b.nextChange, last: b.last, changed: b.changed, knownUntil: b.knownUntil, believed: b.believed,
	}
	c.evidence = b.evidence
	e := &c.evidence
	e.pods, e.listed, e.claims = map[string]*pod{}, map[podresources.Pod]*listedPod{}, maps.Clone(e.claims)
	e.fileClaims, e.allClaims, e.named = maps.Clone(e.fileClaims), nil, map[podresources.Pod][]*pod{}
	for name, l := range b.evidence.listed {
		same := *l
		e.listed[name] = &same
	}
	for _, p := range b.evidence.pods {
		same := *p
		e.add(&same)
	}
	e.changes = changeLog{slices.Clone(e.changes.all)}
	return c
}

func TestMain(m *testing.M) { testmain.Main(m) }

// Short names for types of podresources, for the tables of the tests.
type (
	Allocation   = podresources.Allocation
	Change       = podresources.Change
	Claim        = podresources.Claim
	ClaimFacts   = podresources.ClaimFacts
	ClaimResult  = podresources.ClaimResult
	ClaimUse     = podresources.ClaimUse
	DeviceHealth = podresources.DeviceHealth
	Holder       = podresources.Holder
	Pod          = podresources.Pod
	PodClaim     = podresources.PodClaim
	PodContainer = podresources.PodContainer
	PodFacts     = podresources.PodFacts
)

// second returns the time that is this number of seconds after the beginning.
func second(n int) time.Time { return at(1000 * n) }

// at returns the time that is this number of milliseconds after the beginning.
func at(ms int) time.Time { return time.Unix(1_700_000_000, int64(ms)*int64(time.Millisecond)) }
