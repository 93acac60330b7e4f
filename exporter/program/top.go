package program

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/config"

	"github.com/dra-exporter/dra-exporter/exporter/web"
)

// topOptions are the flags of top.
type topOptions struct {
	url        string
	httpConfig string
	once       bool
	interval   time.Duration
}

func (o *topOptions) add(c *kingpin.CmdClause) {
	c.Flag("url", "Address of the exporter.").Default("http://127.0.0.1:10985").StringVar(&o.url)
	c.Flag(
		"http.config.file",
		"How to talk to an exporter that wants TLS or a password: Prometheus's settings of an HTTP client "+
			"(tls_config, authorization, basic_auth).",
	).StringVar(&o.httpConfig)
	c.Flag("once", "Print the table once and end.").BoolVar(&o.once)
	c.Flag("interval", "How often to renew the table.").Default("1s").DurationVar(&o.interval)
}

const clearScreen = "\x1b[H\x1b[2J"

// maxSnapshot is the largest snapshot that top reads, in bytes.
const maxSnapshot = 256 << 20

// top prints a table of the exporter's snapshot, repeatedly until ctx ends.
func top(ctx context.Context, o topOptions, w io.Writer) error {
	if o.interval <= 0 {
		return badFlag("interval", fmt.Errorf("%v is not above 0", o.interval))
	}
	client, err := o.client()
	if err != nil {
		return badFlag("http.config.file", err)
	}
	defer client.CloseIdleConnections()
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for {
		r, err := fetchReport(ctx, client, o.url)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if !o.once {
			if _, err := io.WriteString(w, clearScreen); err != nil {
				return err
			}
		}
		if err := writeTop(w, r); err != nil || o.once {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// client returns the HTTP client for the configuration file.
func (o *topOptions) client() (*http.Client, error) {
	if o.httpConfig == "" {
		return &http.Client{}, nil
	}
	settings, _, err := config.LoadHTTPConfigFile(o.httpConfig)
	if err != nil {
		return nil, err
	}
	return config.NewClientFromConfig(*settings, "top")
}

func fetchReport(ctx context.Context, client *http.Client, url string) (web.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var r web.Report
	request, err := http.NewRequestWithContext(
		ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/api/v1/snapshot", http.NoBody,
	)
	if err != nil {
		return r, badFlag("url", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return r, fmt.Errorf("get snapshot: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return r, fmt.Errorf("get snapshot from %s: %s", url, response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxSnapshot)).Decode(&r); err != nil {
		return r, fmt.Errorf("decode snapshot from %s: %w", url, err)
	}
	return r, nil
}

// writeTop writes the held devices first.
func writeTop(w io.Writer, r web.Report) error {
	held := 0
	for i := range r.Devices {
		if r.Devices[i].Attribution != "" {
			held++
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintln(t, strings.Join(cells, "\t")) } // Flush returns the error
	line(fmt.Sprintf("%s  %s  %d devices, %d held", r.Node, r.Time.Local().Format(time.TimeOnly), len(r.Devices), held))
	line("")
	line("DEVICE", "STATE", "UTIL", "POWER", "ENERGY", "HELD BY")
	slices.SortStableFunc(r.Devices, func(a, b web.DeviceReport) int { return topRank(a) - topRank(b) })
	for i := range r.Devices {
		d := &r.Devices[i]
		line(printable(d.String()), topState(d), figure(d.Values, "utilization", 100, " %"),
			figure(d.Values, "power", 1, " W"), figure(d.Values, "energy", 1e-3, " kJ"), holders(d))
	}
	return t.Flush()
}

func topRank(d web.DeviceReport) int {
	switch {
	case d.Attribution != "":
		return 0
	case d.Up != nil && *d.Up:
		return 1
	default:
		return 2
	}
}

func topState(d *web.DeviceReport) string {
	switch {
	case d.Up != nil && !*d.Up:
		return "down"
	case d.Attribution != "" && d.Missing != "":
		return "held, " + string(d.Missing)
	case d.Attribution != "":
		return "held, " + string(d.Attribution)
	case d.Missing != "":
		return string(d.Missing)
	default:
		return "free"
	}
}

func figure(values []web.ValueReport, quantity string, scale float64, unit string) string {
	for _, v := range values {
		if v.Quantity == quantity {
			return fmt.Sprintf("%.1f%s", v.Value*scale, unit)
		}
	}
	return "-"
}

func holders(d *web.DeviceReport) string {
	var out []string
	for _, s := range d.Shares {
		if !s.Admin {
			out = append(out, s.Pods...)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > 4 {
		out = append(out[:4], fmt.Sprintf("and %d more", len(out)-4))
	}
	return printable(strings.Join(out, " "))
}

// printable replaces control characters, which could command a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return '?'
		}
		return r
	}, s)
}
