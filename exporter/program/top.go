package program

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/version"
	"golang.org/x/term"

	"github.com/dra-exporter/dra-exporter/exporter/top"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// topOptions are the flags of commands that send requests to running exporters.
type topOptions struct {
	urls       []string
	eachIP     bool
	fromKube   bool
	nodes      []string
	httpConfig string

	table     top.Config
	once      bool
	output    string
	sort      string
	view      string
	incidents bool

	name, namespace string // arguments of why
}

// add adds the commands that send requests to running exporters.
func (o *topOptions) add(app *kingpin.Application) {
	c := app.Command(commandTop, "Show a live table of one or several running exporters.")
	o.addTargets(c)
	o.addTable(c)
	views := texts(top.Views())
	c.Flag("view", "Contents of the table: "+strings.Join(views, ", ")+".").Default(views[0]).EnumVar(&o.view, views...)
	c.Flag("incidents", "The same as --view=incidents.").BoolVar(&o.incidents)
	c = app.Command(removedIncidents, "").Hidden()
	o.addTargets(c)
	o.addTable(c)
	for _, c := range []*kingpin.CmdClause{
		app.Command(commandWhy, "Show a claim, a pod, a device or an incident: who holds what since when and why, what is "+
			"wrong, what is not measured, and a claim's last ten minutes."),
		app.Command(removedClaim, "").Hidden(),
	} {
		o.addTargets(c)
		c.Flag("namespace", "Namespace of a name without one.").Short('n').PlaceHolder("NAMESPACE").StringVar(&o.namespace)
		c.Arg("name", "NAMESPACE/NAME of a claim or a pod, a device, or the identity of an incident.").Required().
			StringVar(&o.name)
	}
}

// addTargets adds the flags that select exporters.
func (o *topOptions) addTargets(c *kingpin.CmdClause) {
	add := addTo(c)
	add("url", "http://127.0.0.1:10985", &o.urls, "Address of an exporter, as URL or HOST:PORT (repeatable).")
	add("all-addresses", "", &o.eachIP,
		"Ask every address of the hosts in --url: all exporters behind a headless Service.")
	add("all-nodes", "", &o.fromKube,
		"Ask the exporters of all nodes through the API server, with --kubeconfig, $KUBECONFIG or ~/.kube/config: the pods "+
			"labelled app.kubernetes.io/name=dra-exporter. It needs the right to get pods/proxy.")
	add("node", "=NODE", &o.nodes, "With --all-nodes: ask only the exporter of this node (repeatable).")
	add("http.config.file", "=FILE", &o.httpConfig,
		"Settings for exporters that require TLS or a password: Prometheus's settings of an HTTP client (tls_config, "+
			"authorization, basic_auth).")
}

// addTable adds the flags of a table.
func (o *topOptions) addTable(c *kingpin.CmdClause) {
	c.Flag(
		"output", "Format: table, wide or json, which is /api/v1/snapshot and /api/v1/incidents of each exporter.",
	).Short('o').Default("table").EnumVar(&o.output, "table", "wide", "json")
	orders := texts(top.Orders())
	c.Flag("sort", "Sort by: "+strings.Join(orders, ", ")+".").Default("state").EnumVar(&o.sort, orders...)
	add := addTo(c)
	add("once", "", &o.once, "Print the table once and exit, as without a terminal.")
	add("reverse", "", &o.table.Reverse, "Reverse the order.")
	add("filter", "=WORDS", &o.table.Filter, "Show only rows with these words in any column.")
	add("interval", "1s", &o.table.Interval, "How often to refresh the table.")
}

// texts returns values as strings.
func texts[S ~string](of []S) []string {
	var out []string
	for _, s := range of {
		out = append(out, string(s))
	}
	return out
}

// runTop shows a table on the alternate screen of a terminal until ctx ends, or prints it once.
func runTop(ctx context.Context, o *options, command string, w io.Writer) error {
	collectOften()
	t := &o.top
	isTable := command == commandTop
	if isTable && t.table.Interval <= 0 {
		return badFlag("interval", fmt.Errorf("%v is not above 0", t.table.Interval))
	}
	if err := checkFile("http.config.file", t.httpConfig); err != nil {
		return err
	}
	client, err := t.client(nil)
	if err != nil {
		return badFile("http.config.file", t.httpConfig, err)
	}
	defer client.CloseIdleConnections()
	subjects := t.subjects()
	find, err := t.find(client, o.kubeconfig, subjects)
	if err != nil {
		return err
	}
	c := t.table
	c.Find, c.Order, c.Format, c.View, c.Clean = find, top.Order(t.sort), top.Format(t.output), top.View(t.view), printable
	if t.incidents {
		c.View = top.ViewIncidents
	}
	file, isFile := w.(*os.File)
	switch {
	case !isTable:
		return top.Describe(ctx, c, subjects, w)
	case c.Format == top.FormatJSON:
		return top.Print(ctx, c, plainJSON{w})
	case !t.once && isFile && term.IsTerminal(int(file.Fd())):
		return top.Show(ctx, c)
	default:
		return top.Print(ctx, c, w)
	}
}

// subjects returns the possible meanings of the name, in the order in which they are tried.
func (o *topOptions) subjects() []top.Subject {
	name := o.name
	if o.namespace != "" && !strings.Contains(name, "/") {
		name = o.namespace + "/" + name
	}
	var out []top.Subject
	if strings.Count(name, "/") != 1 {
		out = []top.Subject{{View: top.ViewDevices, Name: name}, {View: top.ViewIncidents, Name: name}}
		name = "default/" + name
	}
	return append(out, top.Subject{View: top.ViewClaims, Name: name}, top.Subject{View: top.ViewPods, Name: name})
}

// find returns a function that finds the exporters that may know the subjects, or all exporters.
func (o *topOptions) find(
	client *http.Client, kubeconfig string, of []top.Subject,
) (func(context.Context) ([]top.Node, error), error) {
	if o.fromKube {
		path := cmp.Or(kubeconfig, kube.DefaultConfig())
		if err := checkFile("kubeconfig", path); err != nil {
			return nil, err
		}
		api, err := kube.NewClient(path, "dra-exporter-top/"+version.Version)
		if err != nil {
			return nil, badFile("kubeconfig", path, err)
		}
		finder := kube.NewFinder(api)
		return func(ctx context.Context) ([]top.Node, error) {
			nodes := o.nodes
			for _, subject := range of {
				if len(nodes) == 0 {
					nodes = nodesOf(ctx, finder, subject)
				}
			}
			return top.FromKube(ctx, api, nodes...)
		}, nil
	}
	if o.eachIP {
		return o.findAddresses, nil
	}
	nodes := make([]top.Node, 0, len(o.urls))
	for _, address := range o.urls {
		n, err := top.FromURL(client, address)
		if err != nil {
			return nil, badFlag("url", err)
		}
		nodes = append(nodes, n)
	}
	return func(context.Context) ([]top.Node, error) { return nodes, nil }, nil
}

// nodesOf returns the nodes of a claim or pod, none if they are unknown, as for deleted claims:
// then any node may have held it.
func nodesOf(ctx context.Context, finder *kube.Finder, of top.Subject) []string {
	namespace, name, _ := strings.Cut(of.Name, "/")
	switch of.View {
	case top.ViewClaims:
		nodes, _ := finder.ClaimNodes(ctx, namespace, name)
		return nodes
	case top.ViewPods:
		if node, _ := finder.PodNode(ctx, namespace, name); node != "" {
			return []string{node}
		}
	default:
	}
	return nil
}

// findAddresses returns the exporters at all addresses of the given hosts.
func (o *topOptions) findAddresses(ctx context.Context) ([]top.Node, error) {
	var all []top.Node
	for _, address := range o.urls {
		nodes, err := top.FromName(ctx, net.DefaultResolver.LookupNetIP, o.client, address)
		if err != nil {
			return nil, err
		}
		all = append(all, nodes...)
	}
	return all, nil
}

// client returns an HTTP client for the configuration file. With a dial function, it keeps no
// connections.
func (o *topOptions) client(dial top.Dial) (*http.Client, error) {
	if o.httpConfig == "" && dial == nil {
		return &http.Client{}, nil
	}
	settings, err := clientSettings(o.httpConfig)
	if err != nil {
		return nil, err
	}
	var options []config.HTTPClientOption
	if dial != nil {
		options = append(options, config.WithDialContextFunc(dial), config.WithKeepAlivesDisabled())
	}
	return config.NewClientFromConfig(*settings, "top", options...)
}
