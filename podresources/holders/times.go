package holders

import "time"

// All waiting times and bounds of the decision, and why they are what they are. A hold is settled
// for good when the time until which it is known who holds what (View.At) has passed its beginning
// or its end.
const (
	// maxGuess is the longest time between two answers for which a change without a sign is put in
	// the middle: a usual tick, and one that was late.
	maxGuess = 3 * time.Second
	// maxPreparation is the longest time from a sign that a pod will hold a device to the kubelet's
	// first answer that names it: CDI specs are written before the kubelet knows of them.
	maxPreparation = 2 * time.Second
	// signDoubt is how late a change may be noticed that is seen at once: by as much the time of a
	// sign is off.
	signDoubt = 50 * time.Millisecond
	// roundedDown is by how much the times that objects have are, at most.
	roundedDown = time.Second
	// maxPending is how long readings wait until it is known who held what: for an answer of the
	// kubelet, and for what an allocation is, which is withheld until then. What is known later is a
	// late correction.
	maxPending = 2 * time.Second
	// keepEnded is how long the end of a hold is in views: longer than readings can wait.
	keepEnded = 10 * time.Second

	// kubeletSettles is how long a kubelet that has restarted takes, from the first pod of the API
	// server that it lists, to list them all: it takes them in one after the other.
	kubeletSettles = 2 * time.Second
	// unansweredAfter is how long the kubelet must not have answered until that is the reason of
	// what is held: a call may fail once.
	unansweredAfter = 3 * time.Second
	// claimWait is how long an answer of the kubelet waits for the API server to say what its new
	// claims are: most are known at once then, and a tick is hardly late. The first answer waits for
	// maxPending.
	claimWait = 150 * time.Millisecond
	// catchUp is how long the kubelet, the API server and drivers take at most to catch up with what
	// one of them has told. Meanwhile the kubelet is asked at each tick, since it gives what a pod
	// holds when its driver has prepared it; a pod that it does not list yet, whose name another one
	// had, is kept; and a conflict of kubelet and API server is not logged.
	catchUp = 3 * time.Second
	// pollInterval is how often it is asked while its pods are watched and nothing changes. Each
	// question writes an error to its log for each pod that waits for its claim.
	pollInterval = 10 * time.Second
	// watchLag is the longest time that the news of a change takes to arrive. Until then it is not
	// known that nothing changed.
	watchLag = 250 * time.Millisecond

	// expectedFor is how long after something came an answer of the kubelet may lack it.
	expectedFor = 250 * time.Millisecond

	// changesBefore is how far the changes of a view reach back before the view that came before it:
	// a pod's cgroup is there before the kubelet lists what the pod holds.
	changesBefore = 10 * time.Second
	// changeMemory is how long changes are kept, counted back from the newest.
	changeMemory = 10 * time.Minute
	// sameChange is the time within which the same sign is of one change: a file that is written in
	// several steps, a folder that is seen twice.
	sameChange = time.Second

	// keepDeleted is how long it is remembered that a pod or a claim was deleted: longer than a
	// watch of the pods lasts until it is started again, which gives a list.
	keepDeleted = 11 * time.Minute
	// keepNominated is how long a pod is kept that is no longer nominated: it was bound to the node,
	// and the source of the node's pods has it soon.
	keepNominated = 5 * time.Second
	// untilListed is how long a pod whose containers have not started is given to be listed by the
	// kubelet, which names most claims, before the API server is asked for the names.
	untilListed = 5 * time.Second
)

const (
	maxChanges   = 4096
	maxPods      = 1 << 13 // of the node; as many that were deleted are remembered
	maxNominated = 1024
)
