package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/common/version"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// inputs are the inputs of the program.
type inputs struct {
	api     *kube.Client // nil: none
	node    *node.Node
	sources []driver.Source
}

// watch runs all watches of the inputs until ctx ends.
func (in inputs) watch(ctx context.Context) {
	var watching sync.WaitGroup
	watching.Go(func() { in.node.Watch(ctx) })
	for _, source := range in.sources {
		if w, ok := source.(driver.Watcher); ok {
			watching.Go(func() { w.Watch(ctx) })
		}
	}
	watching.Wait()
}

// open opens the inputs for the flags.
func open(o *options, m memory, list []Source, metrics node.Metrics, log *slog.Logger) (in inputs, err error) {
	if err := o.checkFolders(); err != nil {
		return in, err
	}
	if in.api, err = newAPI(o, log); err != nil {
		return in, err
	}
	if in.node, err = newNode(o, m, in.api, metrics, log); err != nil {
		return in, err
	}
	if in.sources, err = makeSources(o, list, in.node); err != nil {
		in.node.Close()
	}
	return in, err
}

// checkFile returns an error if a flag's file is not readable without waiting. It does not wait.
func checkFile(flag, path string) error {
	if path == "" {
		return nil
	}
	file, err := sysfs.Open(path)
	if err != nil {
		return badFile(flag, path, err)
	}
	_ = file.Close()
	return nil
}

// checkFolder returns an error if a flag's path exists and is not a folder.
func checkFolder(flag, path string) error {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return badFlag(flag, fmt.Errorf("%s is not a folder", path))
	}
	return nil
}

// checkFolders checks the folders of the node. It may hang.
func (o *options) checkFolders() error {
	folders := []struct{ flag, path string }{
		{"kubelet.root", o.inputs.KubeletRoot},
		{"path.podlogs", o.inputs.PodLogs},
		{"path.procfs", o.paths.Procfs},
		{"path.sysfs", o.paths.Sysfs},
	}
	for _, path := range o.inputs.CDI {
		folders = append(folders, struct{ flag, path string }{"path.cdi", path})
	}
	for _, f := range folders {
		if err := checkFolder(f.flag, f.path); err != nil {
			return err
		}
	}
	// The source reports a kernel log that is absent or not readable.
	if i, err := os.Stat(o.paths.Kmsg); err == nil && (i.IsDir() || i.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0) {
		return badFlag("path.kmsg", fmt.Errorf("%s is not a kernel log", o.paths.Kmsg))
	}
	return nil
}

// newAPI returns the client of the API server, nil if there is none or --kube=off.
func newAPI(o *options, log *slog.Logger) (*kube.Client, error) {
	if o.kube == "off" {
		return nil, nil
	}
	client, err := kube.NewClient(o.kubeconfig, "dra-exporter/"+version.Version)
	switch {
	case errors.Is(err, kube.ErrNoCluster):
		log.Debug("the API server is not used", "reason", err)
		return nil, nil
	case err != nil:
		return nil, badFile("kubeconfig", o.kubeconfig, err)
	}
	log.Info("using the API server", "address", client.Host())
	return client, nil
}

// newNode returns the node for the flags.
func newNode(o *options, m memory, api *kube.Client, metrics node.Metrics, log *slog.Logger) (*node.Node, error) {
	c := o.inputs
	c.Procfs, c.Sysfs, c.API, c.Metrics, c.Log = o.paths.Procfs, o.paths.Sysfs, api, metrics, log
	c.Bounds, c.SliceBytes = podresources.FullBounds().Times(m.share), m.of(kube.MaxSliceBytes)
	n, err := node.New(c)
	if bad, ok := errors.AsType[*node.ConfigError](err); ok {
		of := map[string]struct{ flag, path string }{
			"PodResourcesSocket": {"kubelet.podresources-socket", o.inputs.PodResourcesSocket},
			"PodsSocket":         {"kubelet.pods-socket", o.inputs.PodsSocket},
			"InventoryFile":      {"inventory.file", o.inputs.InventoryFile},
		}[bad.Field]
		return nil, badFile(of.flag, of.path, bad.Err)
	}
	return n, err
}

var errNoAPI = errors.New("there is no API server: --kube=off, or neither in a cluster nor given a --kubeconfig")

// sourceReviews names the access reviews in the metrics about sources.
const sourceReviews = "reviews"

// guard restricts pages to users whom the API server allows to read them, if the flag is set.
// Probes stay open.
func guard(
	o *options, api *kube.Client, metrics *exporter.SelfMetrics, log *slog.Logger, pages http.Handler,
) (http.Handler, error) {
	if !o.kubeAuthorization {
		return pages, nil
	}
	if api == nil {
		return nil, badFlag("web.kube-authorization", errNoAPI)
	}
	if *o.web.WebConfigFile == "" {
		log.Warn("tokens are sent without TLS, unless something else encrypts: see --web.config.file")
	}
	return access.Guard(access.Config{API: api, Open: web.Probes(), Report: func(took time.Duration, err error) {
		metrics.Observe(sourceReviews, took, err, time.Now())
	}, Limited: func() {
		metrics.Reject(driver.Rejection{Input: sourceReviews, Reason: driver.ReasonRateLimited, Count: 1})
	}}, web.Recognized(pages)), nil
}

const (
	// maxResident is the largest budget: resident bytes of the process, including file pages.
	maxResident = 160 << 20
	// filePages is the resident part of the program file, which Go's memory limit does not include.
	filePages = 36 << 20
	// fixed is the memory that the program needs without any pod, device or client.
	fixed = filePages + 18<<20
	// least is what it takes with the smallest parts.
	least = fixed + 4<<20
	// garbage is reserved in smaller budgets, since the garbage of a tick shrinks less than the parts.
	garbage = 20 << 20
	// minShare is the smallest share with which the program works properly. With less memory, it
	// exceeds its budget.
	minShare = 1. / 16
	// fullSeries is the limit of series at the full budget, unless the flag sets a lower one.
	fullSeries = 6 << 14
	rowBytes   = 6 << 10 // per allocation, or per pod of one, from the join to the page
)

// memory divides a budget among the parts of the program.
type memory struct {
	budget int64
	share  float64 // the factor for all parts; 1 at the full budget
}

// newMemory divides a memory limit ($GOMEMLIMIT), at most maxResident.
func newMemory(limit int64) memory {
	budget := min(limit, maxResident)
	return memory{budget, max(minShare, float64(budget-fixed-garbage)/(maxResident-fixed-garbage))}
}

// heap returns the limit for Go's runtime: a tenth less than the budget without file pages, since
// the runtime collects more often near the limit, and exceeds it for a short time.
func (m memory) heap() int64 { return (max(m.budget, least) - filePages) / 10 * 9 }

// of returns the bytes for a part that has full bytes of the full budget.
func (m memory) of(full int) int { return int(m.share * float64(full)) }

// series returns the limit of series: that of the flag, or a lower one with less than the full
// budget.
func (m memory) series(flag int) int {
	if most := m.of(fullSeries); m.share < 1 && (flag == 0 || flag > most) {
		return most
	}
	return flag
}
