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
	"go.yaml.in/yaml/v2"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	pages "github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// options are the values of the flags.
type options struct {
	groups  []*flagGroup
	removed map[string]*bool // by flag

	log   promslog.Config
	web   *web.FlagConfig
	top   topOptions
	check checkOptions
	gate  gatewayOptions

	webOptions
	nodeOptions
	kubeOptions
	sourceOptions
	counterOptions
	recorderOptions
}

// webOptions are the flags of the HTTP server, without those of exporter-toolkit.
type webOptions struct {
	telemetryPath     string
	lastScrape        time.Duration
	maxAge            time.Duration
	createdSamples    bool
	pprof             bool
	kubeAuthorization bool
	withAPI, withPage bool
	hosts             []string
}

// nodeOptions are the flags for the inputs of the node.
type nodeOptions struct {
	node          string
	kubeletRoot   string
	socket        string
	podsSocket    string
	podLogs       string
	paths         driver.Host
	cdi           []string
	inventoryFile string
	emptyGrace    time.Duration
}

// kubeOptions are the flags for the API server and for facts of its objects.
type kubeOptions struct {
	kube           string
	kubeconfig     string
	podLabels      []string
	podAnnotations []string
	claimLabels    []string
	selection      podresources.Selection // of labels and annotations
}

// sourceOptions are the flags of the sources.
type sourceOptions struct {
	scrapeConfig string
	enabled      map[string]*bool
	addresses    map[string]*string // of sources with an address, by name
	switches     map[string]*bool   // by flag
	asked        map[string]*bool   // whether the flag is set
}

// counterOptions are the flags of sampling, of counters, and of groups of metrics.
type counterOptions struct {
	interval         time.Duration
	retention        time.Duration
	minLifetime      time.Duration
	idleThreshold    float64
	networkThreshold float64
	quietAfter       time.Duration
	zeroHold         time.Duration
	maxSeries        int
	fitAfter         time.Duration
	fitMargin        float64
	groupChoices     map[exposition.Group]*string
}

// recorderOptions are the flags of the flight recorder, and of persistent state.
type recorderOptions struct {
	stateDir     string
	recorder     bool
	incidentsDir string
	stalledAfter time.Duration
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
	o.addWebFlags(o.group(app, "HTTP server"))
	o.addNodeFlags(o.group(app, "Node", commandCheck))
	o.addKubeFlags(app)
	o.addCounterFlags(o.group(app, "Sampling and counters"))
	o.addGroupFlags(o.group(app, "Groups of metrics"))
	o.addRecorderFlags(o.group(app, "Flight recorder"))
	read := o.group(app, "Sources", commandCheck)
	for _, s := range sources {
		o.addSource(read, s)
	}
	read.Flag(
		"source.scrape.config", "File that lists the metrics of co-installed exporters to join.",
	).PlaceHolder("FILE").StringVar(&o.scrapeConfig)
	o.addRemoved(app)
	promslogflag.AddFlags(app, &o.log)
	logs := o.group(app, "Log", commandCheck, commandGateway)
	logs.names = []string{promslogflag.LevelFlagName, promslogflag.FormatFlagName}
	return o
}

// addWebFlags adds the flags of the HTTP server.
func (o *webOptions) addWebFlags(g *flagGroup) {
	g.Flag(
		"web.telemetry-path", "Path under which to serve the metrics.",
	).Default("/metrics").StringVar(&o.telemetryPath)
	g.Flag(
		"web.last-scrape-timeout",
		"On SIGTERM, how long to wait for one more scrape if there was one in the last two minutes.",
	).Default("15s").DurationVar(&o.lastScrape)
	g.Flag(
		"web.max-snapshot-age",
		"Age of the latest snapshot from which /healthz and /readyz fail; at least three times --sample.interval.",
	).Default("1m").DurationVar(&o.maxAge)
	g.Flag(
		"web.created-samples",
		"Write _created lines in OpenMetrics text. Most scrapers make series of them; protobuf carries created "+
			"timestamps without this.",
	).BoolVar(&o.createdSamples)
	g.Flag("web.api", "Serve JSON under /api/; the command top needs it.").Default("true").BoolVar(&o.withAPI)
	g.Flag("web.page", "Serve the page at /.").Default("true").BoolVar(&o.withPage)
	g.Flag(
		"web.host",
		"Name under which browsers find the page and the JSON (repeatable), besides addresses, the node's name, and names "+
			"without a dot or in .svc, .cluster.local, .internal: requests to others are refused.",
	).PlaceHolder("NAME").StringsVar(&o.hosts)
	g.Flag("web.pprof", "Serve profiles under /debug/pprof/.").BoolVar(&o.pprof)
	g.Flag(
		"web.kube-authorization",
		"Restrict pages to bearer tokens that the API server allows to get the path (TokenReview, "+
			"SubjectAccessReview); /healthz and /readyz stay open.",
	).BoolVar(&o.kubeAuthorization)
}

// addCounterFlags adds the flags of sampling and of counters.
func (o *counterOptions) addCounterFlags(g *flagGroup) {
	g.Flag(
		"sample.interval", "How often to read the devices and ask the kubelet.",
	).Default("1s").DurationVar(&o.interval)
	g.Flag(
		"retention", "How long the counters of an ended claim or pod stay exported.",
	).Default("5m").DurationVar(&o.retention)
	g.Flag(
		"pod.min-lifetime",
		"How long a pod must have held a device to have series of its own; until then it counts in those of its workload. "+
			"0s: no minimum.",
	).Default("0s").DurationVar(&o.minLifetime)
	g.Flag(
		"idle.threshold", "A device whose utilization is above it is active.",
	).Default("0.01").Float64Var(&o.idleThreshold)
	g.Flag(
		"idle.network-threshold", "A network or RDMA device whose traffic is above it is active, in bytes per second.",
	).Default("1e4").Float64Var(&o.networkThreshold)
	g.Flag(
		"idle.quiet-after", "The page and top call a held device quiet if no holder has used it for this time.",
	).Default("30s").DurationVar(&o.quietAfter)
	g.Flag(
		"counter.zero-hold",
		"Show a new counter at 0 until it is this old: a little more than the scrape interval, for a Prometheus "+
			"without created timestamps.",
	).Default("20s").DurationVar(&o.zeroHold)
	g.Flag(
		"max-series", "Highest number of dra_ series, without the exporter's own.",
	).Default("50000").IntVar(&o.maxSeries)
}

// addGroupFlags adds the flags of groups of metrics.
func (o *counterOptions) addGroupFlags(g *flagGroup) {
	g.Flag(
		"fit.after", "How long a claim must have been measured before its smallest fit is shown: a cycle of its load.",
	).Default("24h").DurationVar(&o.fitAfter)
	g.Flag(
		"fit.margin", "The part of the memory and compute of a claim's smallest fit that stays unused.",
	).Default("0.05").Float64Var(&o.fitMargin)
	o.groupChoices = map[exposition.Group]*string{}
	for _, group := range exposition.Groups() {
		flag := g.Flag(group.Group.Flag(), group.Help).Default(group.Choices[0])
		o.groupChoices[group.Group] = flag.Enum(group.Choices...)
	}
}

// choices returns the chosen values of the groups of metrics.
func (o *counterOptions) choices() exposition.Choices {
	out := exposition.Choices{}
	for group, chosen := range o.groupChoices {
		out[group] = *chosen
	}
	return out
}

// stateFolder returns the folder for persistent state, and its flag; "": none.
func (o *recorderOptions) stateFolder() (path, flag string) {
	if o.stateDir != "" {
		return o.stateDir, "state.dir"
	}
	return o.incidentsDir, "incidents.dir"
}

// addRecorderFlags adds the flags of the flight recorder, and of persistent state.
func (o *recorderOptions) addRecorderFlags(g *flagGroup) {
	g.Flag(
		"state.dir",
		"Folder on a disk of the node that keeps counters, incidents and receipts over a restart; default: none.",
	).PlaceHolder("FOLDER").StringVar(&o.stateDir)
	g.Flag(
		"recorder", "Keep the last ten minutes of every quantity and holder, and the minute before and after an incident.",
	).Default("true").BoolVar(&o.recorder)
	g.Flag(
		"stalled.after", "How long a claim must be busy without signs of life to be stalled.",
	).Default(stall.DefaultAfter.String()).DurationVar(&o.stalledAfter)
	g.Flag(
		"incidents.dir",
		"Deprecated: use --state.dir, which has precedence.",
	).PlaceHolder("FOLDER").StringVar(&o.incidentsDir)
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

// addNodeFlags adds the flags for the inputs of the node.
func (o *nodeOptions) addNodeFlags(g *flagGroup) {
	g.Flag(
		"node-name", "Name of this node; default: $NODE_NAME, else the host's name.",
	).PlaceHolder("NAME").StringVar(&o.node)
	g.Flag(
		"kubelet.root", "Root folder of the kubelet.",
	).Default("/var/lib/kubelet").StringVar(&o.kubeletRoot)
	g.Flag(
		"kubelet.podresources-socket",
		"Socket of the PodResources service; default: pod-resources/kubelet.sock under the root.",
	).PlaceHolder("SOCKET").StringVar(&o.socket)
	g.Flag(
		"kubelet.pods-socket",
		"Socket of the kubelet's Pods API (Kubernetes 1.37); default: pods-api/pods-api.sock under the root.",
	).PlaceHolder("SOCKET").StringVar(&o.podsSocket)
	g.Flag(
		"kubelet.empty-grace", "How long an empty answer is ignored if no cgroup proves that the pods have ended.",
	).Default("60s").DurationVar(&o.emptyGrace)
	g.Flag(
		"path.podlogs", "Folder of the pods' logs; its names have the pods' UIDs.",
	).Default("/var/log/pods").StringVar(&o.podLogs)
	g.Flag("path.procfs", "Where procfs is mounted.").Default("/proc").StringVar(&o.paths.Procfs)
	g.Flag("path.sysfs", "Where sysfs is mounted.").Default("/sys").StringVar(&o.paths.Sysfs)
	g.Flag("path.kmsg", "The kernel log.").Default("/dev/kmsg").StringVar(&o.paths.Kmsg)
	g.Flag("path.cdi", "Folder of CDI specs (repeatable).").Default("/etc/cdi", "/var/run/cdi").StringsVar(&o.cdi)
	g.Flag(
		"inventory.file",
		"File of ResourceSlices and ResourceClaims, as kubectl get -o yaml prints them, in place of the API server's slices.",
	).PlaceHolder("FILE").StringVar(&o.inventoryFile)
}

// addKubeFlags adds the flags for the API server and for facts of its objects.
func (o *options) addKubeFlags(app *kingpin.Application) {
	o.group(
		app, "API server", commandCheck, commandTop, commandWhy, removedIncidents, removedClaim, commandGateway,
	).Flag(
		"kubeconfig", "Kubeconfig of the API server; default: the service account's.",
	).PlaceHolder("FILE").StringVar(&o.kubeconfig)
	g := o.group(app, "API server", commandCheck)
	g.Flag(
		"kube", "Use of the API server: auto (in a cluster, or given a kubeconfig) or off.",
	).Default("auto").EnumVar(&o.kube, "auto", "off")
	g.Flag(
		"pod-label", "Label of pods to show in dra_pod_info, as label_NAME (repeatable).",
	).PlaceHolder("KEY").StringsVar(&o.podLabels)
	g.Flag(
		"pod-annotation", "Annotation of pods to show in dra_pod_info, as annotation_NAME (repeatable).",
	).PlaceHolder("KEY").StringsVar(&o.podAnnotations)
	g.Flag(
		"claim-label", "Label of claims to show in dra_claim_info, as label_NAME (repeatable).",
	).PlaceHolder("KEY").StringsVar(&o.claimLabels)
}

// validate checks the flags, and sets defaults that depend on others.
func (o *options) validate() error {
	if err := pages.CheckMetricsPath(o.telemetryPath); err != nil {
		return badFlag("web.telemetry-path", err)
	}
	for flag, d := range map[string]time.Duration{
		"retention": o.retention, "pod.min-lifetime": o.minLifetime,
		"counter.zero-hold": o.zeroHold, "kubelet.empty-grace": o.emptyGrace,
		"web.last-scrape-timeout": o.lastScrape, "idle.quiet-after": o.quietAfter, "fit.after": o.fitAfter,
	} {
		if d < 0 {
			return badFlag(flag, fmt.Errorf("%v is negative", d))
		}
	}
	if o.maxAge < minMaxAge {
		return badFlag("web.max-snapshot-age", fmt.Errorf("%v is shorter than %v", o.maxAge, minMaxAge))
	}
	if o.interval < minInterval {
		return badFlag("sample.interval", fmt.Errorf("%v is shorter than %v", o.interval, minInterval))
	}
	for flag, share := range map[string]float64{"idle.threshold": o.idleThreshold, "fit.margin": o.fitMargin} {
		if !(share >= 0 && share < 1) {
			return badFlag(flag, fmt.Errorf("%v is not within 0 and 1", share))
		}
	}
	if !(o.networkThreshold >= 0) {
		return badFlag("idle.network-threshold", fmt.Errorf("%v is not 0 or more", o.networkThreshold))
	}
	if o.stalledAfter <= 0 {
		return badFlag("stalled.after", fmt.Errorf("%v is not above 0", o.stalledAfter))
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
	o.node = nodeName(o.node)
	if o.socket == "" {
		o.socket = filepath.Join(o.kubeletRoot, "pod-resources", "kubelet.sock")
	}
	if o.podsSocket == "" {
		o.podsSocket = filepath.Join(o.kubeletRoot, "pods-api", "pods-api.sock")
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

// webUsers returns a function that reads the users' password hashes from --web.config.file, as
// exporter-toolkit does for each request; nil: there is no such file.
func (o *options) webUsers() func() (map[string]string, error) {
	file := *o.web.WebConfigFile
	if file == "" {
		return nil
	}
	return func() (map[string]string, error) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var config struct {
			Users map[string]string `yaml:"basic_auth_users"`
		}
		if err := yaml.Unmarshal(text, &config); err != nil {
			return nil, err
		}
		return config.Users, nil
	}
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
		{"pod-label", "label_", o.podLabels, &o.selection.PodLabels},
		{"pod-annotation", "annotation_", o.podAnnotations, &o.selection.PodAnnotations},
		{"claim-label", "label_", o.claimLabels, &o.selection.ClaimLabels},
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
