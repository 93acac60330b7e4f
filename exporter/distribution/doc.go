// Package distribution keeps how the values of a gauge were distributed over time, in little
// memory: a [Histogram] has the time for which values of each bucket stood.
//
// Buckets and resolution are those of Prometheus' native histograms: bucket i of schema s has the
// values above base^(i-1) and up to base^i, where base is 2^(2^-s)
// (https://prometheus.io/docs/specs/native_histograms/). So a histogram maps to one of theirs
// without loss.
package distribution
