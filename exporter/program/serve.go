package program

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// serve samples and serves until ctx ends.
func serve(ctx context.Context, o *options, list []Source, log *slog.Logger) error {
	sources, err := makeSources(o, list)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	metrics := exporter.NewSelfMetrics(registry, o.node, log)
	node, err := newNode(o, metrics, log)
	if err != nil {
		return err
	}
	defer node.close()

	sampler := exporter.NewSampler(exporter.SamplerConfig{
		Interval: o.interval, Deadline: sourceDeadline, Owners: node, Inventory: node, Sources: sources, Hints: node.hints,
		Metrics: metrics, Now: time.Now, PodOf: podresources.NewProcesses(o.paths.Procfs).PodUID,
		Ledger: exporter.NewLedger(exporter.LedgerConfig{
			Retention: o.retention, IdleThreshold: o.idleThreshold, NetworkThreshold: o.networkThreshold, MaxSeries: o.maxSeries,
		}),
	})
	scrapes := &exporter.Scrapes{}
	exposition := exporter.NewExposition(registry, sampler.Latest, exporter.ExpositionConfig{
		ZeroHold: o.zeroHold, CreatedSamples: o.createdSamples,
		Error: func(err error) { log.WarnContext(ctx, "answering a scrape", "err", err) },
	})
	pages, err := node.guard(o, exporter.NewHandler(exporter.ServerConfig{
		Metrics: exposition, Latest: sampler.Latest, Node: o.node, MetricsPath: o.telemetryPath, Pprof: o.pprof,
		Version: cmp.Or(version.Version, "development build"), Scrapes: scrapes, IdleAfter: idleAfter,
	}))
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		Handler:           pages,
		ErrorLog:          slog.NewLogLogger(serverLog{log.Handler()}, slog.LevelWarn),
	}
	log.InfoContext(ctx, "starting dra-exporter", "version", version.Info(), "build", version.BuildContext(), "node", o.node, "kubelet", o.socket)
	return run(ctx, parts{node: node, sampler: sampler, server: server, scrapes: scrapes}, o, log)
}

// idleAfter is how long a claim does nothing before the page calls it idle.
const idleAfter = 30 * time.Second

// lastAnswers is how long answers that were begun may take at the end.
const lastAnswers = 3 * time.Second

type parts struct {
	node    *node
	sampler *exporter.Sampler
	server  *http.Server
	scrapes *exporter.Scrapes
}

// run runs the parts until ctx ends or the server fails. At the end whoever scrapes regularly gets one more scrape, until
// which the devices are read on, so that what is lost to a restart is no more than the restart itself.
func run(ctx context.Context, p parts, o *options, log *slog.Logger) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var watching, sampling sync.WaitGroup
	watching.Go(func() { p.node.watch(working) })
	sampling.Go(func() { p.sampler.Run(working) })

	failed := make(chan error, 1)
	go func() { failed <- web.ListenAndServe(p.server, o.web, log) }()
	select {
	case err := <-failed:
		stop()
		sampling.Wait()
		watching.Wait()
		return err
	case <-ctx.Done():
	}
	p.node.hint()
	p.awaitScrape(ctx, o.lastScrape, log)
	stop()
	sampling.Wait()
	watching.Wait()
	err := p.closeServer(ctx, log)
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	log.InfoContext(ctx, "stopped")
	return err
}

// closeServer ends the server when all is answered. Connections over which nothing comes, or that take nothing, are cut after a while.
func (p parts) closeServer(ctx context.Context, log *slog.Logger) error {
	patient, done := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer done()
	err := p.server.Shutdown(patient)
	if errors.Is(err, context.DeadlineExceeded) {
		log.InfoContext(ctx, "cutting the connections that are left", "after", lastAnswers)
		err = p.server.Close()
	}
	return err
}

// awaitScrape waits for one more scrape, if somebody scraped in the last two minutes.
func (p parts) awaitScrape(ctx context.Context, atMost time.Duration, log *slog.Logger) {
	next := p.scrapes.Next(2 * time.Minute)
	if next == nil || atMost <= 0 {
		return
	}
	log.InfoContext(ctx, "waiting for the last scrape", "timeout", atMost)
	patience := time.NewTimer(atMost)
	defer patience.Stop()
	select {
	case <-next:
	case <-patience.C:
	}
}

// makeSources makes the sources that are switched on, in order of precedence: those of the list, then the scraped
// endpoints in the order of their file.
func makeSources(o *options, list []Source) ([]driver.Source, error) {
	var out []driver.Source
	for _, s := range list {
		paths, wanted := o.pathsOf(s)
		if !wanted {
			continue
		}
		source, err := s.New(paths)
		if errors.Is(err, ErrNotBuilt) && !o.askedFor(s.Name) {
			continue
		}
		if err != nil {
			return nil, badFlag("source."+s.Name, err)
		}
		out = append(out, source)
	}
	if o.scrapeConfig == "" {
		return out, nil
	}
	config, err := scrape.Load(o.scrapeConfig)
	if err != nil {
		return nil, badFlag("source.scrape.config", err)
	}
	for _, endpoint := range config.Endpoints {
		source, err := scrape.New(endpoint)
		if err != nil {
			return nil, badFlag("source.scrape.config", err)
		}
		out = append(out, source)
	}
	return out, nil
}
