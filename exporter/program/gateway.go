package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/version"

	"github.com/dra-exporter/dra-exporter/exporter/gateway"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

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
	settings := &config.DefaultHTTPClientConfig
	if o.httpConfig != "" {
		var err error
		if settings, _, err = config.LoadHTTPConfigFile(o.httpConfig); err != nil {
			return nil, err
		}
	}
	return config.NewRoundTripperFromConfig(*settings, "gateway")
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
	o.gate.Find, o.gate.Users, o.gate.Transport, o.gate.Log, o.gate.Now = kube.NewFinder(api), users, transport, log, time.Now
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
