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

// open opens the inputs for the flags. It ends with ctx even if an input hangs.
func open(
	ctx context.Context, o *options, m memory, list []Source, metrics node.Metrics, log *slog.Logger,
) (inputs, error) {
	type opened struct {
		inputs
		err error
	}
	//nolint:contextcheck // what is opened outlives the start
	opening := driver.Go(func() (in opened) {
		if in.err = o.checkFolders(); in.err != nil {
			return in
		}
		if in.api, in.err = newAPI(o, log); in.err != nil {
			return in
		}
		if in.node, in.err = newNode(o, m, in.api, metrics, log); in.err != nil {
			return in
		}
		if in.sources, in.err = makeSources(o, list, in.node); in.err != nil {
			in.node.Close()
		}
		return in
	}, func(err error) opened { return opened{err: fmt.Errorf("start: %w", err)} })
	in, done := opening.Wait(ctx)
	if !done {
		return inputs{}, fmt.Errorf("start: files or devices do not answer: %w", ctx.Err())
	}
	return in.inputs, in.err
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
	return access.NewGate(access.Config{API: api, Open: web.Probes(), Report: func(took time.Duration, err error) {
		metrics.Observe(sourceReviews, took, err, time.Now())
	}, Limited: func() {
		metrics.Reject(driver.Rejection{Input: sourceReviews, Reason: driver.ReasonRateLimited, Count: 1})
	}}).Handler(web.Recognized(pages)), nil
}
