package present

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// For the claims that an incident hit, a summary names those that were possibly hit, unless it
// certainly hit another pod of the claim.
func TestSummaryOfIncident(t *testing.T) {
	i := &recorder.Incident{Holders: []recorder.Holder{
		{Namespace: "n", Claim: "shared", Pod: "a", Hit: true},
		{Namespace: "n", Claim: "shared", Pod: "b", Hit: true, Possible: true},
		{Namespace: "n", Claim: "later", Pod: "c", Hit: true, Possible: true},
		{Namespace: "n", Claim: "other", Pod: "d"},
	}}
	got := summaryOf(i)
	want := IncidentSummary{Hit: []string{"n/later", "n/shared"}, Possible: []string{"n/later"}}
	diff := cmp.Diff(want, got)
	expect.That(t, diff == "" && got.Possibly("n/later") && !got.Possibly("n/shared"), "(-want +got):\n%s", diff)
}
