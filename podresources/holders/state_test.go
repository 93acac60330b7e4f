package holders

import (
	"fmt"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// podTest is a pod with the UID 1 and the name a. The steps of a test determine its life. Each step
// takes a second.
type podTest struct {
	*node
	facts PodFacts
}

func (p *podTest) tick() time.Time {
	p.now = p.now.Add(time.Second)
	return p.now
}

// change passes the present object of the pod.
func (p *podTest) change(with func(f *PodFacts)) {
	with(&p.facts)
	p.PodChanged(p.facts, p.tick())
}

// Steps of a pod's life. Each gives one piece of evidence.
var (
	isNominated = func(p *podTest) {
		p.facts.Nominated = true
		p.NominatedChanged(p.facts, p.tick())
	}
	isBound    = func(p *podTest) { p.change(func(f *PodFacts) { f.Nominated = false }) }
	starts     = func(p *podTest) { p.change(func(f *PodFacts) { f.Nominated, f.Started, f.Running = false, true, 1 }) }
	exits      = func(p *podTest) { p.change(func(f *PodFacts) { f.Nominated, f.Final, f.Running = false, true, 0 }) }
	terminates = func(p *podTest) { p.change(func(f *PodFacts) { f.Nominated, f.Final = false, true }) }
	finishes   = func(p *podTest) {
		p.change(func(f *PodFacts) { f.Nominated, f.Local, f.Final, f.Running = false, false, true, 0 })
	}
	isDeleted   = func(p *podTest) { p.PodDeleted("1", p.tick()) }
	isInList    = func(p *podTest) { p.PodsListed([]PodFacts{p.facts}, p.facts.Local, p.tick()) }
	isNotInList = func(p *podTest) {
		other := running("b", "2", 0)
		other.Local = false
		p.PodsListed([]PodFacts{other}, false, p.tick())
	}
	isListed   = func(p *podTest) { p.answer(time.Second, held("gpu-0", "a")) }
	isUnlisted = func(p *podTest) { p.answer(time.Second) }
	failed     = func(p *podTest) { p.fail(time.Second) }
	restarts   = func(p *podTest) { // the new kubelet lists a pod of the API server after a while
		p.restart()
		p.others = []string{"exporter"}
		p.PodChanged(running("exporter", "3", 1), p.tick())
		p.answer(time.Second)
		p.tick()
	}
	isReplaced = func(p *podTest) {
		p.PodChanged(running("a", "2", 1), p.tick())
	}
	cgroupGoes = func(p *podTest) {
		p.states["1"] = podresources.CgroupGone
		p.quiet(time.Second)
	}
)

// Every transition of the table that changes a pod's state occurs with the evidence that the table
// names. All other evidence changes nothing.
func TestTransitions(t *testing.T) {
	type steps []func(p *podTest)
	all := transitions()
	seen := map[string]bool{}
	visit := func(f fact, from State) {
		seen[fmt.Sprint(f, " ", from)] = true
	}
	for name, tc := range map[string]struct {
		steps steps
		last  fact  // the fact of the last step
		from  State // before the last step
		want  State
	}{
		"nominated":                         {steps{isNominated}, nominated, Unknown, Waiting},
		"bound":                             {steps{isBound}, bound, Unknown, Bound},
		"bound, after it was nominated":     {steps{isNominated, isBound}, bound, Waiting, Bound},
		"started":                           {steps{starts}, started, Unknown, Running},
		"nominated, and started":            {steps{isNominated, starts}, started, Waiting, Running},
		"bound, and started":                {steps{isBound, starts}, started, Bound, Running},
		"ended when it was seen first":      {steps{exits}, localFinal, Unknown, Ending},
		"nominated, and rejected":           {steps{isNominated, exits}, localFinal, Waiting, Ending},
		"never started":                     {steps{isBound, exits}, localFinal, Bound, Ending},
		"ended":                             {steps{starts, exits}, localFinal, Running, Ending},
		"finished when it was seen first":   {steps{finishes}, finished, Unknown, Ended},
		"nominated, and evicted":            {steps{isNominated, finishes}, finished, Waiting, Ended},
		"bound, and evicted":                {steps{isBound, finishes}, finished, Bound, Ended},
		"finished":                          {steps{starts, finishes}, finished, Running, Ended},
		"ended, and finished":               {steps{starts, exits, finishes}, finished, Ending, Ended},
		"deleted before it was seen":        {steps{isDeleted}, deleted, Unknown, Deleted},
		"deleted while nominated":           {steps{isNominated, isDeleted}, deleted, Waiting, Deleted},
		"deleted while bound":               {steps{isBound, isDeleted}, deleted, Bound, Deleted},
		"deleted while it runs":             {steps{starts, isDeleted}, deleted, Running, Deleted},
		"missing in the API server's list":  {steps{starts, isNotInList}, deleted, Running, Deleted},
		"deleted while it ends":             {steps{starts, exits, isDeleted}, deleted, Ending, Deleted},
		"deleted at last":                   {steps{starts, finishes, isDeleted}, deleted, Ended, Deleted},
		"in a later list":                   {steps{starts, isDeleted, isInList}, relisted, Deleted, Running},
		"bound, and unlisted":               {steps{isBound, isListed, isUnlisted}, unlisted, Bound, Ended},
		"unlisted":                          {steps{starts, isListed, isUnlisted}, unlisted, Running, Ended},
		"ended, and unlisted":               {steps{starts, isListed, exits, isUnlisted}, unlisted, Ending, Ended},
		"never listed, ended, and unlisted": {steps{starts, exits, isUnlisted}, unlisted, Ending, Ended},
		"unlisted by another, listed": {
			steps{starts, isListed, restarts, isUnlisted, isListed}, listed, Ended, Running,
		},
		"ended, and its cgroup goes":            {steps{starts, exits, cgroupGoes}, cgroupGone, Ending, Ended},
		"ends, and its cgroup goes":             {steps{starts, terminates, cgroupGoes}, cgroupGone, Ending, Ended},
		"ended, and replaced":                   {steps{starts, exits, isReplaced}, replaced, Ending, Ended},
		"replaced, and ended":                   {steps{starts, isReplaced, exits}, replaced, Ending, Ended},
		"replaced, and ends":                    {steps{starts, isReplaced, terminates}, localFinal, Running, Ending},
		"not listed yet":                        {steps{starts, isUnlisted}, unlisted, Running, Running},
		"nominated, and not listed":             {steps{isNominated, isUnlisted}, unlisted, Waiting, Waiting},
		"containers run on, and it is unlisted": {steps{starts, terminates, isUnlisted}, unlisted, Ending, Ending},
		"the kubelet does not answer":           {steps{starts, isListed, failed}, started, Running, Running},
		"replaced while it runs":                {steps{starts, isReplaced}, replaced, Running, Running},
		"finished, and listed":                  {steps{starts, finishes, isListed}, listed, Ended, Ended},
		"deleted, and listed":                   {steps{starts, isDeleted, isListed}, listed, Deleted, Deleted},
		"deleted, and a late notification":      {steps{starts, isDeleted, exits}, localFinal, Deleted, Deleted},
		"ended, and the API server is late":     {steps{starts, exits, starts, exits}, localFinal, Ending, Ending},
		"unlisted, and a late notification":     {steps{starts, isListed, isUnlisted, starts}, started, Ended, Ended},
		"not in the kubelet's list, but in its answer": {
			steps{starts, isListed, func(p *podTest) { p.PodsListed(nil, true, p.tick()) }}, started, Running, Running,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &podTest{node: newNode(t), facts: PodFacts{Pod: podNamed("a"), UID: "1", Local: true, Created: second(0)}}
			p.uids = map[string]string{"a": "1"}
			state := func() State {
				if pod := p.evidence.pods["1"]; pod != nil {
					return pod.state
				}
				return Unknown
			}
			for i, step := range tc.steps {
				if got := state(); i == len(tc.steps)-1 && got != tc.from && tc.last != replaced {
					t.Errorf("it is %v before, want %v", got, tc.from)
				}
				step(p)
			}
			expect.Is(t, state(), tc.want, "it")
			if pod := p.evidence.pods["1"]; tc.want != tc.from && tc.last != relisted && tc.last != listed && pod.by != tc.last {
				t.Errorf("it is so by fact %d, want %d", pod.by, tc.last)
			}
			if tc.want != tc.from {
				visit(tc.last, tc.from)
			}
			if over := len(p.held()) == 0; tc.want.over() && !over && p.UID(podNamed("a")) == "1" {
				t.Errorf("a pod that is %v holds %v", tc.want, p.held())
			}
		})
	}
	for f := range numFacts {
		for from := range numStates {
			if all[f][from] != from && !seen[fmt.Sprint(f, " ", from)] {
				t.Errorf("no evidence of fact %d makes a pod that is %v one that is %v", f, from, all[f][from])
			}
		}
	}
}
