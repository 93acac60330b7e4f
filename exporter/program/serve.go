package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/version"
	toolkit "github.com/prometheus/exporter-toolkit/web"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/gateway"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// gcPercent is the default of $GOGC: the growth of the heap between two collections, in percent.
// test/BENCHMARKS.md has its effect.
const gcPercent = 30

// collectOften sets the default of $GOGC.
func collectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// serve samples and serves until ctx ends. lines receives the log.
func serve(ctx context.Context, o *options, list []Source, lines *lineQueue) error {
	log := o.logger(lines)
	collectOften()
	if !o.pages.Pprof {
		profileNoHeap()
	}
	choices := o.choices()
	memory := newMemory(debug.SetMemoryLimit(-1))
	debug.SetMemoryLimit(memory.heap())
	registry := prometheus.NewRegistry()
	metrics := exporter.NewSelfMetrics(registry, o.inputs.Name, choices, log)
	lines.onDrop(metrics.LogDropped)
	in, err := open(o, memory, list, metrics, log) //nolint:contextcheck // it asks nobody yet
	if err != nil {
		return err
	}
	defer in.node.Close()
	kept, err := newKept(ctx, o, metrics, log)
	if err != nil {
		return err
	}
	flight, err := newFlight(o, memory, kept, in.node, in.api, metrics, log)
	if err != nil {
		return err
	}

	var paths exporter.Paths // nil: no topology of pods is wanted
	if choices.Has(exposition.GroupTopology) {
		paths = in.node
	}
	metrics.IdleThresholds(o.books.IdleThreshold, o.books.NetworkThreshold)
	kept.resumeSources(in.sources)
	books := kept.resume(ctx, o.ledger(choices, memory), in.node, metrics, log)
	sampler := exporter.NewSampler(exporter.SamplerConfig{
		Interval: o.interval, Deadline: sourceDeadline, Owners: in.node, Inventory: in.node, Sources: in.sources,
		Hints: in.node.Hints(), Paths: paths,
		Metrics: metrics, Now: time.Now, PodOf: podresources.NewProcesses(o.paths.Procfs).PodUID,
		Ledger: books, State: kept.sink(),
		Limiter: exposition.NewLimiter(memory.series(o.maxSeries), choices), MaxAge: o.maxAge,
		Recorder: flight.sink(),
	})
	scrapes := &web.Scrapes{}
	o.rendering.Choices = choices
	c := o.pages
	c.Metrics = exposition.New(registry, sampler.Latest, o.rendering)
	c.Latest, c.Health, c.GiveWay = sampler.Latest, sampler.Health, sampler.GiveWay
	c.Node, c.Version, c.Log = o.inputs.Name, cmp.Or(version.Version, "development build"), log
	c.Scrapes, c.Recorder, c.MaxAnswers = scrapes, flight.Recorder, memory.of(web.MaxAnswers)
	c.WithoutAPI, c.WithoutPage = !o.withAPI, !o.withPage
	c.Rejected = func(r driver.Rejection) { metrics.Reject(r) }
	c.Sources = func() []present.Source { return sourceStates(in.sources, list, metrics.States()) }
	pages, err := guard(o, in.api, metrics, log, web.NewHandler(c))
	if err != nil {
		return err
	}
	server := web.NewServer(web.ServerConfig{
		Handler: pages, Log: newServerLog(log.Handler()), Rejected: c.Rejected,
	})
	log.InfoContext(
		ctx, "starting dra-exporter", "version", version.Info(), "build", version.BuildContext(), "node", o.inputs.Name,
		"kubelet", o.inputs.PodResourcesSocket, "memory_mib", memory.budget>>20, "share", memory.share,
	)
	return run(ctx, parts{
		inputs: in, sampler: sampler, server: server, scrapes: scrapes, flight: flight, kept: kept,
	}, o, log)
}

// ledger returns the configuration of the ledger.
func (o *options) ledger(choices exposition.Choices, m memory) ledger.Config {
	c := o.books
	c.History, c.Advise = m.of(ledger.MaxHistory), choices.Has(exposition.GroupFit)
	c.WithoutErrors, c.WithoutPeaks = !choices.Has(exposition.GroupErrors), !choices.Has(exposition.GroupPeaks)
	c.WithoutDistributions = !choices.Has(exposition.GroupHistograms)
	c.Fit.IdleThreshold, c.Fit.MemoryEvery = c.IdleThreshold, fit.DefaultMemoryEvery
	return c
}

// shutdownTimeout is how long answers in progress may take when the program ends.
const shutdownTimeout = 3 * time.Second

type parts struct {
	inputs
	sampler *exporter.Sampler
	server  *http.Server
	scrapes *web.Scrapes
	flight  flight
	kept    kept
}

// run runs the parts until ctx ends or the server fails. At the end it waits for one more scrape,
// if there are regular ones, and samples until then, so that a restart loses only the time of the
// restart.
func run(ctx context.Context, p parts, o *options, log *slog.Logger) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var watching, sampling, keeping sync.WaitGroup
	kept, keepNoMore := context.WithCancel(context.WithoutCancel(ctx))
	defer func() { // runs after the last tick
		keepNoMore()
		keeping.Wait()
		p.kept.close(ctx)
	}()
	keeping.Go(func() { p.flight.run(kept) })
	watching.Go(func() { p.watch(working) })
	sampling.Go(func() { p.sampler.Run(working) })

	failed := listen(p.server, o, log)
	select {
	case err := <-failed:
		stop()
		sampling.Wait()
		watching.Wait()
		return err
	case <-ctx.Done():
	}
	p.node.Hint()
	p.awaitScrape(ctx, o.lastScrape, log)
	stop()
	sampling.Wait()
	watching.Wait()
	err := errors.Join(p.closeServer(ctx, log), <-failed)
	log.InfoContext(ctx, "stopped")
	return err
}

// listen serves until the server is closed. The channel receives why it failed; nil: it was closed.
func listen(server *http.Server, o *options, log *slog.Logger) <-chan error {
	failed := make(chan error, 1)
	go func() {
		err := toolkit.ListenAndServe(server, o.web, slog.New(newServerLog(log.Handler())))
		if err == nil || errors.Is(err, http.ErrServerClosed) {
			failed <- nil
			return
		}
		failed <- fmt.Errorf("serve HTTP: %w", err)
	}()
	return failed
}

// closeServer stops the server once all requests are answered. After shutdownTimeout, it closes the
// remaining connections.
func (p parts) closeServer(ctx context.Context, log *slog.Logger) error {
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer done()
	err := p.server.Shutdown(closing)
	if errors.Is(err, context.DeadlineExceeded) {
		log.InfoContext(ctx, "closing the remaining connections", "after", shutdownTimeout)
		err = p.server.Close()
	}
	return err
}

// awaitScrape waits for one more scrape, if there was one in the last two minutes.
func (p parts) awaitScrape(ctx context.Context, atMost time.Duration, log *slog.Logger) {
	next := p.scrapes.Next(2 * time.Minute)
	if next == nil || atMost <= 0 {
		return
	}
	log.InfoContext(ctx, "waiting for the last scrape", "timeout", atMost)
	select {
	case <-next:
	case <-time.After(atMost):
	}
}

// sourceStates returns the state of each input. For sources of devices it includes the quantities
// that they can read.
func sourceStates(sources []driver.Source, list []Source, states map[string]driver.Reason) []present.Source {
	out := make([]present.Source, 0, len(states))
	for _, source := range sources {
		state := present.Source{Name: source.Name(), Down: states[source.Name()]}
		delete(states, source.Name())
		if scraped, ok := source.(*scrape.Source); ok {
			state.Fills = scraped.Fills()
		} else if i := slices.IndexFunc(list, func(s Source) bool { return s.Name == source.Name() }); i >= 0 {
			state.Fills = list[i].Fills
		}
		out = append(out, state)
	}
	for _, name := range slices.Sorted(maps.Keys(states)) {
		out = append(out, present.Source{Name: name, Down: states[name]})
	}
	return out
}

// makeSources returns the enabled sources, in order of precedence: those of the list, then the
// scraped endpoints in the order of their file, then the sources with Last.
func makeSources(o *options, list []Source, n *node.Node) ([]driver.Source, error) {
	mounts := o.paths
	mounts.KubeletRoot = o.inputs.KubeletRoot
	mounts.Passthrough, mounts.Attachments, mounts.CountListed = n.Passthrough, n.Attachments, n.Listed
	mounts.Holders = n.Holders
	mounts.PodOf = podresources.NewProcesses(o.paths.Procfs).PodUID
	var out, last []driver.Source
	for _, s := range list {
		paths, wanted := o.pathsOf(s, mounts)
		if !wanted {
			continue
		}
		source, err := s.New(paths)
		switch notBuilt := errors.Is(err, driver.ErrNotBuilt) && !o.isSet(s.Name); {
		case notBuilt && source == nil:
			continue
		case err != nil && !notBuilt:
			return nil, badFlag("source."+s.Name, err)
		}
		if s.Last {
			last = append(last, source)
		} else {
			out = append(out, source)
		}
	}
	if o.scrapeConfig == "" {
		return append(out, last...), nil
	}
	loaded, err := scrape.Load(o.scrapeConfig)
	if err != nil {
		return nil, badFile("source.scrape.config", o.scrapeConfig, err)
	}
	for _, endpoint := range loaded.Endpoints {
		source, err := scrape.New(endpoint, mounts.Sysfs)
		if err != nil {
			return nil, badFile("source.scrape.config", o.scrapeConfig, err)
		}
		out = append(out, source)
	}
	return append(out, last...), nil
}

// profileNoHeap ends the profile of the heap, which takes 2 MiB and which can't be read without
// --web.pprof. Several programs may begin in one process, that of tests.
//
//nolint:gochecknoglobals // the rate is one of the process
var profileNoHeap = sync.OnceFunc(func() { runtime.MemProfileRate = 0 })

// gatewayOptions are the flags of the gateway.
type gatewayOptions struct {
	gateway.Config
	httpConfig string
	proxy      access.Proxy
}

func (o *gatewayOptions) add(c *kingpin.CmdClause) {
	c.Flag("exporter.scheme", "Scheme of requests to exporters: http or https.").Default("http").
		EnumVar(&o.Scheme, "http", "https")
	add := addTo(c)
	add("exporter.namespace", "=NAME", &o.Namespace,
		"Namespace of the exporters' Service; default: that of the gateway's own service account.")
	add("exporter.service", "dra-exporter", &o.Service, "Service of the exporters. Only its pods are asked.")
	add("exporter.port", "metrics", &o.Port, "Name of the Service's port.")
	add("exporter.metrics-path", "/metrics", &o.MetricsPath, "Path of the exporters' metrics.")
	add("exporter.http.config.file", "=FILE", &o.httpConfig,
		"The gateway's own credentials and TLS settings for exporters: Prometheus's settings of an HTTP client "+
			"(tls_config, authorization, basic_auth).")
	add("grafana.url", "=URL", &o.Grafana,
		"Address of the Grafana with the dashboards, to which the pages link: https://grafana.example.com.")
	add("proxy.loopback", "", &o.proxy.Loopback,
		"Trust X-Forwarded-User and X-Forwarded-Groups from clients on the loopback interface, such as an authenticating "+
			"proxy in the same pod. Then anyone who may forward ports of the pod can act as any user.")
	add("proxy.client-name", "=NAME", &o.proxy.Names,
		"Trust these headers from clients with a certificate of this common name (repeatable), signed by the client CA of "+
			"--web.config.file.")
	add("proxy.prefix", "", &o.proxy.Prefix,
		"Prefix for the names of users and groups in these headers, like the API server's OIDC prefix.")
}

// namespaceFile has the namespace of the service account.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func (o *gatewayOptions) validate() error {
	if err := web.CheckMetricsPath(o.MetricsPath); err != nil {
		return badFlag("exporter.metrics-path", err)
	}
	if o.Grafana != "" && !strings.HasPrefix(o.Grafana, "http://") && !strings.HasPrefix(o.Grafana, "https://") {
		return badFlag("grafana.url", fmt.Errorf("%q begins with neither http:// nor https://", o.Grafana))
	}
	if o.Namespace == "" {
		own, err := os.ReadFile(namespaceFile)
		if err != nil {
			return badFlag("exporter.namespace", errors.New("is needed outside of a cluster"))
		}
		o.Namespace = strings.TrimSpace(string(own))
	}
	return checkFile("exporter.http.config.file", o.httpConfig)
}

// transport returns the transport for requests to exporters. It does not follow redirects, and
// ignores proxies in the environment.
func (o *gatewayOptions) transport() (http.RoundTripper, error) {
	settings, err := clientSettings(o.httpConfig)
	if err != nil {
		return nil, err
	}
	return config.NewRoundTripperFromConfig(*settings, "gateway")
}

// clientSettings returns the settings of an HTTP client in a file; "": the defaults.
func clientSettings(path string) (*config.HTTPClientConfig, error) {
	if path == "" {
		return &config.DefaultHTTPClientConfig, nil
	}
	settings, _, err := config.LoadHTTPConfigFile(path)
	return settings, err
}

// runGateway serves the gateway until ctx ends.
func runGateway(ctx context.Context, o *options, log *slog.Logger) error {
	api, err := kube.NewClient(o.kubeconfig, "dra-exporter-gateway/"+version.Version)
	switch {
	case errors.Is(err, kube.ErrNoCluster):
		return badFlag("kubeconfig", err)
	case err != nil:
		return badFile("kubeconfig", o.kubeconfig, err)
	}
	transport, err := o.gate.transport()
	if err != nil {
		return badFile("exporter.http.config.file", o.gate.httpConfig, err)
	}
	users := access.NewUsers(access.Config{
		API: api, Limited: func() {}, Report: func(took time.Duration, err error) {
			log.Debug("asked the API server about access", "took", took, "error", err)
		},
	}, o.gate.proxy)
	o.gate.Find, o.gate.Users, o.gate.Transport = kube.NewFinder(api), users, transport
	o.gate.Log, o.gate.Now = log, time.Now
	o.gate.Grafana = strings.TrimSuffix(o.gate.Grafana, "/")
	server := web.NewServer(web.ServerConfig{Handler: gateway.New(o.gate.Config), Log: newServerLog(log.Handler())})
	if *o.web.WebConfigFile == "" {
		log.WarnContext(ctx, "tokens are sent without TLS, unless something else encrypts: see --web.config.file")
	}
	log.InfoContext(
		ctx, "starting the gateway", "version", version.Info(), "exporters", o.gate.Namespace+"/"+o.gate.Service,
	)
	failed := listen(server, o, log)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	return errors.Join((parts{server: server}).closeServer(ctx, log), <-failed)
}
