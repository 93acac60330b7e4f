package holders

// State is what a pod is in its life on the node.
type State uint8

// The states, in the order of a life.
const (
	Unknown State = iota // no object of the pod was seen: the kubelet lists its name
	Waiting              // nominated for the node: it is bound when its devices' binding conditions are met
	Bound                // bound to the node; no container has started
	Running              // a container has started
	Ending               // the kubelet ends it: containers may run on, and devices be prepared
	Ended                // it holds nothing any more
	Deleted              // its UID was deleted, and never holds again
	numStates
)

// over reports whether a pod in this state holds nothing any more.
func (s State) over() bool { return s >= Ended }

// fact is what evidence says of one pod.
type fact uint8

const (
	// Of the pod's object.
	nominated  fact = iota // the scheduler has chosen the node, and has not bound the pod
	bound                  // bound to the node, no container started
	started                // a container has started
	localFinal             // the kubelet's own status is Succeeded or Failed
	finished               // the API server's status is Succeeded or Failed
	deleted                // the object was deleted, or a complete list of the API server lacks it
	relisted               // a complete list that was asked for after the deletion has it
	// Of the kubelet's answers that are believed of the pod.
	lacked // one lacks the pod which an earlier one had, or which was ending when it was asked for
	listed // one lists the pod again that only such an answer had ended, or a static pod
	// Of other things.
	cgroupGone // its cgroup existed, and was removed
	replaced   // a pod of its name was created after it, and none of its containers runs
	numFacts
)

// transitions returns the state that follows a state by a fact: every change of a pod's state is
// one of these. When a fact is taken, and which, is decided where evidence comes in: see pods.go
// and answers.go.
func transitions() [numFacts][numStates]State {
	return [numFacts][numStates]State{
		//           Unknown  Waiting  Bound    Running  Ending   Ended    Deleted
		nominated:  {Waiting, Waiting, Bound, Running, Ending, Ended, Deleted},
		bound:      {Bound, Bound, Bound, Running, Ending, Ended, Deleted},
		started:    {Running, Running, Running, Running, Ending, Ended, Deleted},
		localFinal: {Ending, Ending, Ending, Ending, Ending, Ended, Deleted},
		finished:   {Ended, Ended, Ended, Ended, Ended, Ended, Deleted},
		deleted:    {Deleted, Deleted, Deleted, Deleted, Deleted, Deleted, Deleted},
		relisted:   {Unknown, Waiting, Bound, Running, Ending, Ended, Unknown},
		lacked:     {Unknown, Waiting, Ended, Ended, Ended, Ended, Deleted},
		listed:     {Unknown, Waiting, Bound, Running, Ending, Unknown, Deleted},
		cgroupGone: {Unknown, Waiting, Bound, Running, Ended, Ended, Deleted},
		replaced:   {Unknown, Waiting, Bound, Running, Ended, Ended, Deleted},
	}
}
