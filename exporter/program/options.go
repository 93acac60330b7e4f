package program

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/promslog"
	promslogflag "github.com/prometheus/common/promslog/flag"
	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"
	webflag "github.com/prometheus/exporter-toolkit/web/kingpinflag"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	pages "github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// options are the values of the flags. Those that one package alone uses are in its configuration.
type options struct {
	groups  []*flagGroup
	removed map[string]*bool // by flag

	log       promslog.Config
	web       *web.FlagConfig
	pages     pages.Config
	rendering exposition.Config
	inputs    node.Config
	paths     driver.Host
	books     ledger.Config
	top       topOptions
	check     checkOptions
	gate      gatewayOptions
	sourceOptions

	// HTTP server
	lastScrape        time.Duration
	maxAge            time.Duration
	kubeAuthorization bool
	withAPI, withPage bool

	// API server
	kube           string
	kubeconfig     string
	podLabels      []string
	podAnnotations []string
	claimLabels    []string

	// sampling, and groups of metrics
	interval     time.Duration
	maxSeries    int
	groupChoices map[exposition.Group]*string

	// persistent state, and the flight recorder
	stateDir        string
	incidentsDir    string
	recorder        bool
	incidentsEvents bool
	stalledAfter    time.Duration
}

// sourceOptions are the flags of the sources.
type sourceOptions struct {
	scrapeConfig string
	enabled      map[string]*bool
	addresses    map[string]*string // of sources with an address, by name
	switches     map[string]*bool   // by flag
	asked        map[string]*bool   // whether the flag is set
}

// logger returns the program's log, as the flags have it.
func (o *options) logger(w io.Writer) *slog.Logger {
	return promslog.New(&promslog.Config{Level: o.log.Level, Format: o.log.Format, Writer: w})
}

// sourceDeadline is the longest time for one call of a source and one request to the kubelet.
const sourceDeadline = 5 * time.Second

func newOptions(app *kingpin.Application, sources []Source) *options {
	o := &options{sourceOptions: sourceOptions{
		enabled: map[string]*bool{}, addresses: map[string]*string{}, switches: map[string]*bool{}, asked: map[string]*bool{},
	}}
	app.HelpFlag.Short('h').Help("Show this help; with a command, that of the command.")
	app.Version(version.Print("dra-exporter")).VersionFlag.Help("Show the version.")
	app.UsageTemplate(usage).UsageFuncs(template.FuncMap{"Sections": o.sections, "CommandRows": commandRows})
	app.Command(commandServe, "Serve the metrics (the default).").Default()
	o.top.add(app)
	o.check.add(app.Command(
		commandCheck, "Ask the kubelet, the API server and each source once. Print what works, what does not, and remedies.",
	))
	o.gate.add(app.Command(
		commandGateway, "Serve the pages of all nodes under one address, to those who may see them.",
	))
	app.Command(commandReference, "Print the reference of all metrics as Markdown.")

	o.web = webflag.AddFlags(o.group(app, "HTTP server", commandGateway), ":10985")
	o.addWebFlags(o.group(app, "HTTP server").add)
	o.addNodeFlags(o.group(app, "Node", commandCheck).add)
	o.addKubeFlags(app)
	o.addCounterFlags(o.group(app, "Sampling and counters").add)
	o.addGroupFlags(o.group(app, "Groups of metrics"))
	o.addRecorderFlags(o.group(app, "Flight recorder").add)
	read := o.group(app, "Sources", commandCheck)
	for _, s := range sources {
		o.addSource(read, s)
	}
	read.add("source.scrape.config", "=FILE", &o.scrapeConfig,
		"File that lists the metrics of co-installed exporters to join.")
	o.addRemoved(app)
	promslogflag.AddFlags(app, &o.log)
	logs := o.group(app, "Log", commandCheck, commandGateway)
	logs.names = []string{promslogflag.LevelFlagName, promslogflag.FormatFlagName}
	return o
}

// addFlags adds the flags of the HTTP server.
func (o *options) addWebFlags(add addFlag) {
	add("web.telemetry-path", "/metrics", &o.pages.MetricsPath, "Path under which to serve the metrics.")
	add("web.last-scrape-timeout", "15s", &o.lastScrape,
		"On SIGTERM, how long to wait for one more scrape if there was one in the last two minutes.")
	add("web.max-snapshot-age", "1m", &o.maxAge,
		"Age of the latest snapshot from which /healthz and /readyz fail; at least three times --sample.interval.")
	add("web.created-samples", "", &o.rendering.CreatedSamples,
		"Write _created lines in OpenMetrics text. Most scrapers make series of them; protobuf carries created timestamps "+
			"without this.")
	add("web.api", "true", &o.withAPI, "Serve JSON under /api/.")
	add("web.page", "true", &o.withPage, "Serve the page at /; the commands top and why need it.")
	add("web.host", "=NAME", &o.pages.Hosts,
		"Name under which browsers find the page and the JSON (repeatable), besides addresses, the node's name, and names "+
			"without a dot or in .svc, .cluster.local, .internal: requests to others are refused.")
	add("web.pprof", "", &o.pages.Pprof, "Serve profiles under /debug/pprof/.")
	add("web.kube-authorization", "", &o.kubeAuthorization,
		"Restrict pages to bearer tokens that the API server allows to get the path (TokenReview, SubjectAccessReview); "+
			"/healthz and /readyz stay open.")
}

// addFlags adds the flags of sampling and of counters.
func (o *options) addCounterFlags(add addFlag) {
	add("sample.interval", "1s", &o.interval, "How often to read the devices and ask the kubelet.")
	add("retention", "5m", &o.books.Retention, "How long the counters of an ended claim or pod stay exported.")
	add("pod.min-lifetime", "0s", &o.books.MinLifetime,
		"How long a pod must have held a device to have series of its own; until then it counts in those of its workload. "+
			"0s: no minimum.")
	add("idle.threshold", "0.01", &o.books.IdleThreshold, "A device whose utilization is above it is active.")
	add("idle.network-threshold", "1e4", &o.books.NetworkThreshold,
		"A network or RDMA device whose traffic is above it is active, in bytes per second.")
	add("idle.quiet-after", "30s", &o.pages.QuietAfter,
		"The page and top call a held device quiet if no holder has used it for this time.")
	add("counter.zero-hold", "20s", &o.rendering.ZeroHold,
		"Show a new counter at 0 until it is this old: a little more than the scrape interval, for a Prometheus without "+
			"created timestamps.")
	add("max-series", "50000", &o.maxSeries, "Highest number of dra_ series, without the exporter's own.")
}

// addGroupFlags adds the flags of groups of metrics.
func (o *options) addGroupFlags(g *flagGroup) {
	g.add("fit.after", "24h", &o.books.Fit.After,
		"How long a claim must have been measured before its smallest fit is shown: a cycle of its load.")
	g.add("fit.margin", "0.05", &o.books.Fit.Margin,
		"The part of the memory and compute of a claim's smallest fit that stays unused.")
	o.groupChoices = map[exposition.Group]*string{}
	for _, group := range exposition.Groups() {
		flag := g.Flag(group.Group.Flag(), group.Help).Default(group.Choices[0])
		o.groupChoices[group.Group] = flag.Enum(group.Choices...)
	}
}

// choices returns the chosen values of the groups of metrics.
func (o *options) choices() exposition.Choices {
	out := exposition.Choices{}
	for group, chosen := range o.groupChoices {
		out[group] = *chosen
	}
	return out
}

// stateFolder returns the folder for persistent state, and its flag; "": none.
func (o *options) stateFolder() (path, flag string) {
	if o.stateDir != "" {
		return o.stateDir, "state.dir"
	}
	return o.incidentsDir, "incidents.dir"
}

// addFlags adds the flags of the flight recorder, and of persistent state.
func (o *options) addRecorderFlags(add addFlag) {
	add("state.dir", "=FOLDER", &o.stateDir,
		"Folder on a disk of the node that keeps counters, incidents and receipts over a restart; default: none.")
	add("recorder", "true", &o.recorder,
		"Keep the last ten minutes of every quantity and holder, and the minute before and after an incident.")
	add("stalled.after", stall.DefaultAfter.String(), &o.stalledAfter,
		"How long a claim must be busy without signs of life to be stalled.")
	add("incidents.dir", "=FOLDER", &o.incidentsDir, "Deprecated: use --state.dir, which has precedence.")
	add("incidents.events", "", &o.incidentsEvents,
		"Write an Event of Kubernetes about each pod and claim that an incident hits; needs the right to create and patch "+
			"events.")
}

// addSource adds the flags of a source.
func (o *sourceOptions) addSource(g *flagGroup, s Source) {
	o.asked[s.Name] = new(bool)
	flag := g.Flag("source."+s.Name, s.Help).IsSetByUser(o.asked[s.Name])
	if s.Addressed {
		o.addresses[s.Name] = flag.Default(off).String()
	} else {
		o.enabled[s.Name] = flag.Default("true").Bool()
	}
	for _, w := range s.Switches {
		name := "source." + s.Name + "." + w.Name
		o.switches[name] = g.Flag(name, w.Help).Bool()
	}
}

// off is the address that disables a source.
const off = "off"

// pathsOf adds the source's own flags to the paths, and reports whether the source is enabled.
func (o *sourceOptions) pathsOf(s Source, paths driver.Host) (driver.Host, bool) {
	for _, w := range s.Switches {
		if *o.switches["source."+s.Name+"."+w.Name] {
			paths.Switches = append(paths.Switches, w.Name)
		}
	}
	if !s.Addressed {
		return paths, *o.enabled[s.Name]
	}
	paths.Address = *o.addresses[s.Name]
	return paths, paths.Address != off
}

// isSet reports whether a source's flag or environment variable is set.
func (o *sourceOptions) isSet(source string) bool {
	return *o.asked[source] || os.Getenv(
		"DRA_EXPORTER_SOURCE_"+strings.ToUpper(strings.ReplaceAll(source, "-", "_")),
	) != ""
}

// addFlags adds the flags for the inputs of the node.
func (o *options) addNodeFlags(add addFlag) {
	add("node-name", "=NAME", &o.inputs.Name, "Name of this node; default: $NODE_NAME, else the host's name.")
	add("kubelet.root", "/var/lib/kubelet", &o.inputs.KubeletRoot, "Root folder of the kubelet.")
	add("kubelet.podresources-socket", "=SOCKET", &o.inputs.PodResourcesSocket,
		"Socket of the PodResources service; default: pod-resources/kubelet.sock under the root.")
	add("kubelet.pods-socket", "=SOCKET", &o.inputs.PodsSocket,
		"Socket of the kubelet's Pods API (Kubernetes 1.37); default: pods-api/pods-api.sock under the root.")
	add("kubelet.empty-grace", "60s", &o.inputs.EmptyGrace,
		"How long an empty answer is ignored if no cgroup proves that the pods have ended.")
	add("path.podlogs", "/var/log/pods", &o.inputs.PodLogs, "Folder of the pods' logs; its names have the pods' UIDs.")
	add("path.procfs", "/proc", &o.paths.Procfs, "Where procfs is mounted.")
	add("path.sysfs", "/sys", &o.paths.Sysfs, "Where sysfs is mounted.")
	add("path.kmsg", "/dev/kmsg", &o.paths.Kmsg, "The kernel log.")
	add("path.cdi", "/etc/cdi /var/run/cdi", &o.inputs.CDI, "Folder of CDI specs (repeatable).")
	add("inventory.file", "=FILE", &o.inputs.InventoryFile,
		"File of ResourceSlices and ResourceClaims, as kubectl get -o yaml prints them, in place of the API server's slices.")
}

// addKubeFlags adds the flags for the API server and for facts of its objects.
func (o *options) addKubeFlags(app *kingpin.Application) {
	asked := []string{commandCheck, commandTop, commandWhy, removedIncidents, removedClaim, commandGateway}
	add := o.group(app, "API server", asked...).add
	add("kubeconfig", "=FILE", &o.kubeconfig, "Kubeconfig of the API server; default: the service account's.")
	g := o.group(app, "API server", commandCheck)
	g.Flag(
		"kube", "Use of the API server: auto (in a cluster, or given a kubeconfig) or off.",
	).Default("auto").EnumVar(&o.kube, "auto", "off")
	add = g.add
	add("pod-label", "=KEY", &o.podLabels, "Label of pods to show in dra_pod_info, as label_NAME (repeatable).")
	add("pod-annotation", "=KEY", &o.podAnnotations,
		"Annotation of pods to show in dra_pod_info, as annotation_NAME (repeatable).")
	add("claim-label", "=KEY", &o.claimLabels, "Label of claims to show in dra_claim_info, as label_NAME (repeatable).")
}

// validate checks the flags, and sets defaults that depend on others.
func (o *options) validate() error {
	if err := pages.CheckMetricsPath(o.pages.MetricsPath); err != nil {
		return badFlag("web.telemetry-path", err)
	}
	least := map[string]time.Duration{
		"web.max-snapshot-age": minMaxAge, "sample.interval": minInterval, "stalled.after": 1,
	}
	for _, group := range o.groups {
		for flag, d := range group.durations {
			if *d < least[flag] {
				return badFlag(flag, fmt.Errorf("%v is shorter than %v", *d, least[flag]))
			}
		}
	}
	for flag, share := range map[string]float64{
		"idle.threshold": o.books.IdleThreshold, "fit.margin": o.books.Fit.Margin,
	} {
		if !(share >= 0 && share < 1) {
			return badFlag(flag, fmt.Errorf("%v is not within 0 and 1", share))
		}
	}
	if !(o.books.NetworkThreshold >= 0) {
		return badFlag("idle.network-threshold", fmt.Errorf("%v is not 0 or more", o.books.NetworkThreshold))
	}
	if o.maxSeries < 0 {
		return badFlag("max-series", errors.New("is negative"))
	}
	if err := o.checkWeb(); err != nil {
		return err
	}
	if err := checkFile("kubeconfig", o.kubeconfig); err != nil {
		return err
	}
	if err := o.choose(); err != nil {
		return err
	}
	o.inputs.Name = nodeName(o.inputs.Name)
	if o.inputs.PodResourcesSocket == "" {
		o.inputs.PodResourcesSocket = filepath.Join(o.inputs.KubeletRoot, "pod-resources", "kubelet.sock")
	}
	if o.inputs.PodsSocket == "" {
		o.inputs.PodsSocket = filepath.Join(o.inputs.KubeletRoot, "pods-api", "pods-api.sock")
	}
	return nil
}

// checkWeb checks the addresses and the configuration of the HTTP server.
func (o *options) checkWeb() error {
	for _, address := range *o.web.WebListenAddresses {
		if err := checkListenAddress(address); err != nil {
			return badFlag("web.listen-address", err)
		}
	}
	file := *o.web.WebConfigFile
	if err := checkFile("web.config.file", file); err != nil {
		return err
	}
	if err := web.Validate(file); err != nil {
		return badFile("web.config.file", file, err)
	}
	return nil
}

// checkListenAddress checks the form of an address: [HOST]:PORT or vsock://:PORT.
func checkListenAddress(address string) error {
	_, port, err := net.SplitHostPort(strings.TrimPrefix(address, "vsock://"))
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("address %s: %q is not a port", address, port)
	}
	return nil
}

// minInterval keeps the regular requests below the limit of the kubelet (3 a second).
const minInterval = 500 * time.Millisecond

// minMaxAge is longer than the usual pauses of a virtual machine.
const minMaxAge = 5 * time.Second

// choose sets the names under which the selected labels and annotations are shown.
func (o *options) choose() error {
	for _, of := range []struct {
		flag, prefix string
		keys         []string
		to           *[]podresources.Chosen
	}{
		{"pod-label", "label_", o.podLabels, &o.inputs.Selection.PodLabels},
		{"pod-annotation", "annotation_", o.podAnnotations, &o.inputs.Selection.PodAnnotations},
		{"claim-label", "label_", o.claimLabels, &o.inputs.Selection.ClaimLabels},
	} {
		seen := map[string]string{}
		for _, key := range of.keys {
			name := of.prefix + labelName(key)
			if before, twice := seen[name]; twice || key == "" {
				return badFlag(of.flag, fmt.Errorf("%q would be shown as %s, as is %q", key, name, before))
			}
			seen[name] = key
			*of.to = append(*of.to, podresources.Chosen{Key: key, Name: name})
		}
	}
	return nil
}

// labelName returns a key as part of a Prometheus label's name, as kube-state-metrics does.
func labelName(key string) string {
	return strings.Map(func(r rune) rune {
		if (r|0x20 >= 'a' && r|0x20 <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return '_'
	}, key)
}
