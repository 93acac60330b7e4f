package holders

// State is the stage of a pod's life on the node.
type State uint8

// The states, in the order of a pod's life.
const (
	Unknown State = iota // no object is known: the kubelet lists its name
	Waiting              // nominated for the node, and bound once the binding conditions of its devices are met
	Bound                // bound to the node; no container has started
	Running              // a container has started
	Ending               // the kubelet is ending it: its containers may still run, and its devices still be prepared
	Ended                // it holds nothing any more
	Deleted              // it was deleted: its UID never holds a device again
	numStates
)

// over reports whether a pod in this state holds nothing any more.
func (s State) over() bool { return s >= Ended }

// fact is what a piece of evidence says about one pod.
type fact uint8

const (
	// From the pod's object.
	nominated  fact = iota // nominated for the node, and not bound
	bound                  // bound to the node, no container started
	started                // a container has started
	localFinal             // the kubelet's own status is Succeeded or Failed
	finished               // the API server's status is Succeeded or Failed
	deleted                // the object was deleted, or a complete list of the API server lacks it
	relisted               // a complete list that was requested after the deletion has it
	// From the kubelet's answers, if they are believed for the pod.
	unlisted // an answer lacks a pod that an earlier one had, or that was ending when the answer was requested
	listed   // an answer lists a pod again that was ended only by such an answer, or a static pod
	// From other sources.
	cgroupGone // its cgroup existed, and was removed
	replaced   // a newer pod has its name, and none of its containers runs
	numFacts
)

// transitions returns the next state for each fact and state. There are no other changes of a pod's
// state. pods.go and proof.go derive the facts from evidence.
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
		unlisted:   {Unknown, Waiting, Ended, Ended, Ended, Ended, Deleted},
		listed:     {Unknown, Waiting, Bound, Running, Ending, Unknown, Deleted},
		cgroupGone: {Unknown, Waiting, Bound, Running, Ended, Ended, Deleted},
		replaced:   {Unknown, Waiting, Bound, Running, Ended, Ended, Deleted},
	}
}
