package holders

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// recording returns a recorded file.
func recording(t *testing.T, name string) []byte {
	t.Helper()
	return must.Get(os.ReadFile(filepath.Join("..", "testdata", name)))(t)
}

// If no other evidence has the UID of a pod, it is that of the claim's reservation. The input does
// not change.
func TestReservedTellsUIDs(t *testing.T) {
	claim := Claim{Namespace: "ns", Name: "c"}
	holders := []Holder{
		{Pod: Pod{Namespace: "ns", Name: "known"}},
		{Pod: Pod{Namespace: "ns", Name: "object"}},
		{Pod: Pod{Namespace: "ns", Name: "reserved"}},
		{Pod: Pod{Namespace: "ns", Name: "unknown"}},
	}
	node := world{
		listed: []Allocation{{Claim: claim, Holders: holders}},
		claims: map[Claim]ClaimFacts{claim: {Reserved: map[string]string{"8": "known", "9": "object", "3": "reserved"}}},
		uids:   map[Pod]string{{Namespace: "ns", Name: "known"}: "1"},
	}
	uids := func(node world) (out []string) {
		for _, h := range node.holdings().Allocations[0].Holders {
			out = append(out, h.UID)
		}
		return out
	}
	expect.Equal(t, "without pods", []string{"1", "9", "3", ""}, uids(node))
	node.pods = []PodFacts{{Pod: Pod{Namespace: "ns", Name: "object"}, UID: "2"}}
	expect.Equal(t, "", []string{"1", "2", "3", ""}, uids(node))
	expect.That(t, holders[2].UID == "", "the input has changed")
}

// A claim that is reserved for other pods than those that hold it may be an earlier claim of the
// name: its UID is omitted.
func TestUIDOfListedClaim(t *testing.T) {
	for name, tc := range map[string]struct {
		reserved []string
		facts    ClaimFacts
		uids     map[Pod]string // nil: those by the names
		want     string
	}{
		"for one of both":     {reserved: []string{"p"}, want: "u"},
		"for others":          {reserved: []string{"before"}, want: ""},
		"deleted, for others": {reserved: []string{"before"}, facts: ClaimFacts{Deleted: true}, want: ""},
		"for nobody":          {want: "u"},
		"for a pod group":     {reserved: []string{"before"}, facts: ClaimFacts{ReservedOther: true}, want: "u"},
		"unknown pods":        {reserved: []string{"before"}, uids: map[Pod]string{}, want: "u"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.facts.UID = "u"
			node := world{uids: tc.uids}.list("c", "a", "p/main", "q/main")
			node = node.claim("c", tc.facts, []string{"r:a"}, tc.reserved...)
			if got := node.holdings().Allocations[0]; got.ClaimUID != tc.want || got.Request != "r" {
				t.Errorf("the claim is %q, request %q; want %q", got.ClaimUID, got.Request, tc.want)
			}
		})
	}
}
