// Package stalltest generates traces of jobs for the tests of the rule that finds stalled claims:
// what the telemetry of a claim's device and the cgroups of its pods show, second by second, and
// the truth: whether the job works, waits for something that works, is idle, or hangs.
//
// A [Kind] is a job as a list of phases with the levels of each. [Kind.Trace] plays it on a model
// of a device ([Model]) as a telemetry ([Telemetry]) measures it. [Recordings] reads workloads that
// were recorded on a real GPU into the same form. The sources of the levels are named by each kind.
package stalltest
