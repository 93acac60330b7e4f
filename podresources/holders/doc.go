// Package holders decides who holds which device, since when, and why.
//
// A [Book] collects evidence, with the time at which it was requested: answers of the kubelet's
// PodResources service, pods (lists and events), claims, and the appearance and disappearance of
// cgroups and CDI specs. A pod is identified by its UID and has one [State], which changes only as
// the table in pods.go says. [Book.Holds] returns which pod holds which device by all evidence,
// with a reason. [Dates] determines since when and until when.
//
// A hold ends, or begins again, only by evidence that was requested later than the evidence that it
// contradicts. A list is complete, an event is not. Only [Asker], which asks the kubelet, does I/O
// or uses a clock.
//
// Bounds (max…) are for what the kubelet and the API server send.
package holders
