package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/version"
	"golang.org/x/term"

	"github.com/dra-exporter/dra-exporter/exporter/top"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// topOptions are the flags of top.
type topOptions struct {
	urls       []string
	eachIP     bool
	fromKube   bool
	httpConfig string
	once       bool
	output     string
	sort       string
	reverse    bool
	filter     string
	interval   time.Duration
}

func (o *topOptions) add(c *kingpin.CmdClause) {
	c.Flag(
		"url", "Address of an exporter, as URL or HOST:PORT (repeatable).",
	).PlaceHolder("URL").Default("http://127.0.0.1:10985").StringsVar(&o.urls)
	c.Flag(
		"all-addresses", "Ask every address of the hosts in --url: all exporters behind a headless Service.",
	).BoolVar(&o.eachIP)
	c.Flag(
		"all-nodes",
		"Ask the exporters of all nodes through the API server, by --kubeconfig, $KUBECONFIG or ~/.kube/config: the pods "+
			"labelled app.kubernetes.io/name=dra-exporter. It needs the right to get pods/proxy.",
	).BoolVar(&o.fromKube)
	c.Flag(
		"http.config.file",
		"How to talk to an exporter that wants TLS or a password: Prometheus's settings of an HTTP client "+
			"(tls_config, authorization, basic_auth).",
	).PlaceHolder("FILE").StringVar(&o.httpConfig)
	c.Flag("once", "Print the table once and end.").BoolVar(&o.once)
	c.Flag(
		"output", "Format: table, wide or json; json prints once.",
	).Short('o').Default("table").EnumVar(&o.output, "table", "wide", "json")
	var orders []string
	for _, order := range top.Orders() {
		orders = append(orders, string(order))
	}
	c.Flag("sort", "What comes first: "+strings.Join(orders, ", ")+".").Default("state").EnumVar(&o.sort, orders...)
	c.Flag("reverse", "Sort the other way round.").BoolVar(&o.reverse)
	c.Flag(
		"filter", "Show rows that have these words in a name, a model or the state.",
	).PlaceHolder("WORDS").StringVar(&o.filter)
	c.Flag("interval", "How often to renew the table.").Default("1s").DurationVar(&o.interval)
}

// runTop shows a table of the devices until ctx ends: on the alternate screen of a terminal, else
// as text.
func runTop(ctx context.Context, o *options, w io.Writer) error {
	t := &o.top
	if t.interval <= 0 {
		return badFlag("interval", fmt.Errorf("%v is not above 0", t.interval))
	}
	if err := checkFile("http.config.file", t.httpConfig); err != nil {
		return err
	}
	client, err := t.client(nil)
	if err != nil {
		return badFile("http.config.file", t.httpConfig, err)
	}
	defer client.CloseIdleConnections()
	find, err := t.find(client, o.kubeconfig)
	if err != nil {
		return err
	}
	c := top.Config{
		Find: find, Interval: t.interval, Order: top.Order(t.sort), Reverse: t.reverse, Filter: t.filter,
		Format: top.Format(t.output), Clean: printable,
	}
	switch file, isFile := w.(*os.File); {
	case t.once || c.Format == top.FormatJSON:
		return top.Print(ctx, c, w)
	case isFile && term.IsTerminal(int(file.Fd())):
		return top.Show(ctx, c)
	default:
		return top.Repeat(ctx, c, w)
	}
}

// find returns what finds the exporters.
func (o *topOptions) find(client *http.Client, kubeconfig string) (func(context.Context) ([]top.Node, error), error) {
	if o.fromKube {
		path := kubeconfigOrDefault(kubeconfig)
		if err := checkFile("kubeconfig", path); err != nil {
			return nil, err
		}
		api, err := kube.NewClient(path, "dra-exporter-top/"+version.Version)
		if err != nil {
			return nil, badFile("kubeconfig", path, err)
		}
		return func(ctx context.Context) ([]top.Node, error) { return top.FromKube(ctx, api) }, nil
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

// findAddresses returns the exporters at all addresses of the hosts.
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

// kubeconfigOrDefault returns the flag, else $KUBECONFIG, else the file that kubectl reads if there
// is one.
func kubeconfigOrDefault(flag string) string {
	if flag != "" {
		return flag
	}
	if paths := filepath.SplitList(os.Getenv("KUBECONFIG")); len(paths) > 0 {
		return paths[0]
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	path := filepath.Join(home, ".kube", "config")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return path
}

// client returns an HTTP client for the configuration file. One that connects by a function of its
// own keeps no connection.
func (o *topOptions) client(dial top.Dial) (*http.Client, error) {
	if o.httpConfig == "" && dial == nil {
		return &http.Client{}, nil
	}
	settings, options := &config.DefaultHTTPClientConfig, []config.HTTPClientOption{}
	if o.httpConfig != "" {
		var err error
		if settings, _, err = config.LoadHTTPConfigFile(o.httpConfig); err != nil {
			return nil, err
		}
	}
	if dial != nil {
		options = append(options, config.WithDialContextFunc(dial), config.WithKeepAlivesDisabled())
	}
	return config.NewClientFromConfig(*settings, "top", options...)
}

// PluginArguments returns the arguments of the program that is called by a name: kubectl-dra, the
// name of a plugin of kubectl, is `top --all-nodes`.
func PluginArguments(name string, args []string) []string {
	if filepath.Base(name) != "kubectl-dra" {
		return args
	}
	if len(args) > 0 && args[0] == "top" {
		args = args[1:]
	}
	return append([]string{"top", "--all-nodes"}, args...)
}
