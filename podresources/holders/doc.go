// Package holders decides who holds which device, since when, and why.
//
// Evidence comes in as facts with the time at which they were asked for: answers of the kubelet's
// PodResources service, pods (lists and events), claims, cgroups and CDI specs that come and go.
// A [Book] keeps it. A pod is a UID and has one [State], which changes by the table in state.go
// alone. [Book.Holds] returns which pod holds which device by all evidence, with a reason;
// [Dates] says since when, and until when.
//
// A hold ends, or begins again, only by evidence that was asked for later than what it contradicts.
// A list is a complete statement, an event is not. Nothing here but [Asker], which asks the
// kubelet, does I/O or asks a clock.
package holders
