package holders

import "time"

// The delays and limits of the decision, with reasons. The start or end of a hold is final once
// View.At, the time until which the holders are known, is later.
const (
	// maxGuess is the longest time between two answers for which a change without a sign is assumed in
	// the middle. It covers a usual tick and a late one.
	maxGuess = 3 * time.Second
	// maxPreparation is the longest time from a sign that a pod will hold a device to the kubelet's
	// first answer with the pod: CDI specs are written before the kubelet knows about them.
	maxPreparation = 2 * time.Second
	// signDoubt is the largest delay with which a sign is noticed, and so the largest error of its
	// time.
	signDoubt = 50 * time.Millisecond
	// roundedDown is the largest amount by which times in objects are rounded down.
	roundedDown = time.Second
	// maxPending is how long readings wait until the holders are known: for an answer of the kubelet,
	// and for the description of an allocation, which is withheld until then. Later changes are late
	// corrections.
	maxPending = 2 * time.Second
	// keepEnded is how long views include the end of a hold: longer than readings can wait.
	keepEnded = 10 * time.Second

	// kubeletSettles is how long a restarted kubelet takes from listing its first pod from the API
	// server to listing all of them: it adds one after the other.
	kubeletSettles = 2 * time.Second
	// unansweredAfter is how long the kubelet must fail to answer before this becomes the reason of
	// holds: a single call may fail.
	unansweredAfter = 3 * time.Second
	// claimWait is how long an answer of the kubelet waits until its new claims have been read from
	// the API server. Most are read in that time, and the tick is hardly late. The first answer waits
	// for maxPending.
	claimWait = 150 * time.Millisecond
	// catchUp is the longest time after which a change that one of kubelet, API server and driver
	// reports is known to the others. Meanwhile the kubelet is asked at each tick, since it lists a
	// device once the driver has prepared it, and a pod that it does not list yet, and whose name
	// another pod had, is kept.
	catchUp = 3 * time.Second
	// pollInterval is the time between two requests to the kubelet while its pods are watched and
	// nothing changes. At each request, the kubelet logs an error for each pod that waits for its
	// claim.
	pollInterval = 10 * time.Second
	// watchLag is the largest delay of an event of a watch. Without events, it is known that nothing
	// changed up to this time before now.
	watchLag = 250 * time.Millisecond

	// expectedFor is how long after a pod, cgroup or CDI spec appeared the kubelet's answers may lack
	// it.
	expectedFor = 250 * time.Millisecond

	// changesBefore is how far before the previous view the changes of a view reach back: a pod's
	// cgroup exists before the kubelet lists the pod's devices.
	changesBefore = 10 * time.Second
	// changeMemory is how long changes are kept, counted back from the newest.
	changeMemory = 10 * time.Minute
	// sameChange is the time within which equal signs are one change: a file may be written in several
	// steps, and a folder may be reported twice.
	sameChange = time.Second

	// keepDeleted is how long the deletion of a pod or claim is remembered: longer than the longest
	// time between two lists of the pods, since each watch starts with a list.
	keepDeleted = 11 * time.Minute
	// keepNominated is how long a pod is kept after its nomination has ended: if it was bound to the
	// node, the source of the node's pods reports it within that time.
	keepNominated = 5 * time.Second
	// untilListed is how long the exporter waits for the kubelet to list a pod that has not started,
	// before it asks the API server for the names of the pod's claims. The kubelet's answer has most
	// names.
	untilListed = 5 * time.Second
)

const (
	maxChanges = 4096
	maxPods    = 1 << 13 // pods of the node; the same number of deleted pods is remembered
)
