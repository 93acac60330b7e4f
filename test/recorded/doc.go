// Package recorded compares the readings of sources on recorded machines with those of another
// program from the same files, the second opinion.
//
// The recordings are not part of this repository: the environment variable RECORDED names their
// folder. Each recording is one test. It prints a table of equal, different and missing values, and
// fails for a line without an explanation. Explanations are rules, so that they also apply to other
// recordings.
//
//	folder           recording                     second opinion
//	drm/VENDOR/CARD  sysfs of a graphics card      what LACT made of it: drm/lact/VENDOR-CARD.json
//	rdma/FROM/...    class/infiniband of a machine the library procfs
//	expositions      what vendors' exporters serve the exposition itself
package recorded
