// Package recorded compares what sources read of real machines with a second opinion: what another
// program made of the same files.
//
// The recordings are not part of this tree: the environment variable RECORDED names their folder.
// Each of its recordings is one test, which prints a table of what is right, differs or is missing,
// and fails for a line that nothing explains. Reasons are rules, so that other recordings can lie
// there too.
//
//	folder           recording                     second opinion
//	drm/VENDOR/CARD  sysfs of a graphics card      what LACT made of it: drm/lact/VENDOR-CARD.json
//	rdma/FROM/...    class/infiniband of a machine the library procfs
//	expositions      what vendors' exporters serve the exposition itself
package recorded
