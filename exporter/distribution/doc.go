// Package distribution records the distribution of a gauge's values over time in little memory: a
// [Histogram] has the time that was spent in each bucket of values.
//
// Buckets and resolution are those of Prometheus' native histograms: bucket i of schema s has the
// values above base^(i-1) and up to base^i, where base is 2^(2^-s)
// (https://prometheus.io/docs/specs/native_histograms/). So a histogram can be exported as a native
// one without loss.
//
// Bounds (max…) are for what vendors' libraries send.
package distribution
