// Command demo runs dra-exporter on a simulated node: the kubelet's socket, cgroups, CDI specs and
// slices in a temporary folder, simulated devices, and pods that start and end. It needs no
// cluster, no hardware and no privileges.
//
//	go run ./test/demo [--for=60s] [--listen=127.0.0.1:10985] [--seed=1] [--hang=2m] [--driver=dra.net]
//
// With --driver the node has the devices of that driver alone: gpu.example.com, dra.net, or
// nvidia.com/gpu, whose devices come from a device plugin. With --for it ends after that time, and
// fails unless the exporter joined pods with the telemetry of their devices.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/kmsg"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/program"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the demo at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// demo holds the flags.
type demo struct {
	length time.Duration // 0: until it is interrupted
	listen string
	seed   uint64
	hang   time.Duration // time at which a job hangs
	driver string        // of all devices; empty: there are devices of several
}

// shortestHang is long enough for a baseline before the hang, with some readings in each window.
const shortestHang = 30 * time.Second

// The exit statuses.
const (
	exitFailure = 1
	exitUsage   = 2
)

// run runs the demo until ctx ends, or for the time of the flag, and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var d demo
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&d.length, "for", 0, "how long to run; 0: until interrupted")
	flags.StringVar(&d.listen, "listen", "127.0.0.1:10985", "address to serve on")
	flags.Uint64Var(&d.seed, "seed", 1, "the same seed simulates the same pods on the same devices")
	flags.DurationVar(&d.hang, "hang", simnode.DefaultHang,
		"when a job hangs, after the start; its claim is found to be stalled after half as long again")
	flags.StringVar(&d.driver, "driver", "", "simulate the devices of this driver alone")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil || flags.NArg() > 0 || d.hang < shortestHang || d.hang > simnode.DefaultHang:
		_, _ = fmt.Fprintln(stderr, "usage: demo [--for=60s] [--listen=127.0.0.1:10985] [--seed=1] "+
			"[--hang=2m, from 30s on] [--driver=dra.net]")
		return exitUsage
	}
	if err := d.run(ctx, stdout, stderr); err != nil {
		_, _ = fmt.Fprintf(stderr, "demo: %v\n", err)
		return exitFailure
	}
	return 0
}

// run creates the node, and removes it at the end.
func (d demo) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	root, err := os.MkdirTemp("", "dra-demo-")
	if err != nil {
		return fmt.Errorf("make root: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	scenario := simnode.Demo(d.seed, d.hang).WithPlugin(d.seed)
	if d.driver != "" {
		scenario = scenario.Only(d.driver)
	}
	// Real drivers report averages over a second of utilization and power.
	options := simnode.Options{Sim: sim.Options{Window: time.Second, Down: scenario.Outage}, PodsAPI: true}
	node, err := simnode.New(root, d.seed, scenario.Devices, options)
	if err != nil {
		return fmt.Errorf("make node: %w", err)
	}
	if err := node.Start(); err != nil {
		return fmt.Errorf("start node: %w", err)
	}
	defer node.Close()
	return d.play(ctx, node, scenario, stdout, stderr)
}

// play runs the exporter, then the pods, on the node. The exporter ends later than ctx, so that it
// can still serve the summary.
func (d demo) play(ctx context.Context, node *simnode.Node, scenario simnode.Scenario, stdout, stderr io.Writer) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	exporter, pods := make(chan error, 1), make(chan error, 1)
	var both sync.WaitGroup
	both.Go(func() { exporter <- d.runExporter(running, node, stderr) })
	defer both.Wait()
	defer stop()

	if err := waitReady(ctx, d.listen, exporter); err != nil {
		return err
	}
	began := time.Now()
	before := used(node, began)
	over, cancel := d.until(ctx)
	defer cancel()
	if over.Err() == nil {
		both.Go(func() { pods <- scenario.Run(running, node) })
	}
	d.greet(stdout)
	both.Go(func() { printEvents(running, scenario, node.Begun(), began, stdout) })

	select {
	case err := <-exporter:
		return cmp.Or(err, errEnded)
	case err := <-pods:
		return cmp.Or(err, errEnded)
	case <-over.Done():
	}
	s, err := d.summarize(running, node, before)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stdout, "\nAfter %v:\n%v", time.Since(began).Round(time.Second), s)
	if d.length > 0 && s.pods == 0 {
		return errNothing
	}
	return nil
}

// shortest is the shortest demo that is expected to join pods with telemetry.
const shortest = time.Second

// summarize waits until the first pod is joined with telemetry, which takes longer if the machine
// stood still.
func (d demo) summarize(ctx context.Context, node *simnode.Node, before float64) (summary, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		s, err := summarize(ctx, d.listen, node, before)
		if err != nil || s.pods > 0 || d.length < shortest {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

var (
	errEnded   = errors.New("ended early")
	errNothing = errors.New("no pod was joined with the telemetry of its devices")
)

// until returns a context that ends with the demo.
func (d demo) until(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.length <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d.length)
}

// printEvents prints what happens to the devices, at the time when it happens, until ctx ends. Of
// repeated errors it prints only the first one of each device.
func printEvents(ctx context.Context, s simnode.Scenario, start, began time.Time, w io.Writer) {
	const ahead = time.Hour
	printed, seen := time.Duration(-1), map[string]bool{}
	for until := ahead; ; until += ahead {
		for _, t := range s.Story(began.Sub(start), until) {
			if t.At <= printed {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(start.Add(t.At))):
			}
			if text := t.String(); t.For > 0 || !seen[text] {
				seen[text] = true
				_, _ = fmt.Fprintf(w, "%s %s\n", start.Add(t.At).UTC().Format(time.TimeOnly), text)
			}
		}
		printed = until
	}
}

func (d demo) greet(w io.Writer) {
	if d.driver != "" {
		_, _ = fmt.Fprintf(w, "\ndra-exporter runs on a simulated node with devices of %s alone.\n", d.driver)
	} else {
		_, _ = fmt.Fprintf(w, `
dra-exporter runs on a simulated node with 15 GPUs and 4 network interfaces. Pods start and end.
A device plugin offers three of the GPUs, without DRA: translator-0 and notebook-cleo have one each.
Three pods are the ranks of the training vision-pretrain: the others wait for vision-pretrain-2, whose
gpu-10 is throttled. monte-carlo-0 keeps gpu-11 busy and hardly uses its tensor cores.
Every 45 s there are page faults (XID 31) on gpu-1 and gpu-7. On gpu-3 a job hangs after %v, until %[3]v.
The exporter finds the stalled claim %[2]v later (by its flag --stalled.after; the default is 8 min). Later,
the link of eth1 goes down at times, the source of all devices fails for some seconds, and the driver loses
gpu-4 for some minutes. Each of these events is printed below when it happens.
`, d.hang, simnode.StalledAfter(d.hang), simnode.HangEnd)
	}
	_, _ = fmt.Fprintf(w, `
  page      http://%[1]s/
  metrics   http://%[1]s/metrics
  snapshot  http://%[1]s/api/v1/snapshot
  top       go run ./exporter/cmd/dra-exporter top --url=%[1]s

`, d.listen)
	if d.length == 0 {
		_, _ = fmt.Fprintln(w, "Press Ctrl-C to end the demo.")
	}
}

// runExporter runs the program's own main function on the node until ctx ends.
func (d demo) runExporter(ctx context.Context, node *simnode.Node, stderr io.Writer) error {
	args := append(node.Args(), "--web.listen-address="+d.listen, "--web.last-scrape-timeout=0s", "--log.level=warn",
		"--fit.after=20s", "--stalled.after="+simnode.StalledAfter(d.hang).String())
	sources := []program.Source{
		{
			Name: "sim", Help: "Read the simulated devices.",
			New: func(driver.Host) (driver.Source, error) { return node.Source(), nil },
		},
		{Name: "kmsg", Help: "Read the simulated kernel log.", New: kmsg.FromHost},
	}
	if status := program.Run(ctx, args, sources, io.Discard, stderr); status != 0 {
		return fmt.Errorf("run exporter: exit status %d", status)
	}
	return nil
}

// readyTimeout is how long the exporter may take to be ready, and to answer.
const readyTimeout = 30 * time.Second

// waitReady waits for the exporter's first snapshot. It returns an error if the exporter ends
// before, or takes too long.
func waitReady(ctx context.Context, listen string, exporter <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !ready(ctx, listen) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the exporter: %w", ctx.Err())
		case err := <-exporter:
			return cmp.Or(err, errEnded)
		case <-ticker.C:
		}
	}
	return nil
}

func ready(ctx context.Context, listen string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// summary is the exporter's view of the demo.
type summary struct {
	played                int // pods
	devices, claims, pods int // joined with telemetry
	held                  int // devices
	series                int
	joules, podJoules     float64 // of all devices and of pods, in joules, as the exporter reports it
	truth                 float64 // joules that the devices used in that time
}

// String returns the summary, one fact per line.
func (s summary) String() string {
	return fmt.Sprintf(`  pods simulated  %d
  joined          %d devices (%d of them held), %d claims, %d pods
  energy          %.1f kJ by the exporter, %.1f kJ simulated; %.1f kJ of it used by pods
  series          %d
`, s.played, s.devices, s.held, s.claims, s.pods, s.joules/1e3, s.truth/1e3, s.podJoules/1e3, s.series)
}

// used returns the joules that the devices have used so far.
func used(node *simnode.Node, at time.Time) float64 {
	sum := 0.0
	for _, id := range node.Devices() {
		sum += node.Total(id, at).Joules
	}
	return sum
}

// summarize gets the exporter's snapshot. before is the energy, in joules, that the devices had
// used when the exporter started.
func summarize(ctx context.Context, listen string, node *simnode.Node, before float64) (summary, error) {
	r, err := fetch(ctx, "http://"+listen+"/api/v1/snapshot")
	if err != nil {
		return summary{}, err
	}
	s := summary{played: node.Played(), series: r.Series, truth: used(node, r.Time) - before}
	for _, d := range r.Devices {
		if len(d.Values) == 0 {
			continue
		}
		s.devices++
		s.joules += energy(d.Values)
		if d.Attribution != "" {
			s.held++
		}
	}
	s.claims, _ = joined(r.Claims)
	s.pods, s.podJoules = joined(r.Pods)
	return s, nil
}

func fetch(ctx context.Context, url string) (present.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var r present.Report
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return r, fmt.Errorf("get snapshot: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return r, fmt.Errorf("get snapshot: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return r, fmt.Errorf("get snapshot: %s", response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(&r); err != nil {
		return r, fmt.Errorf("decode snapshot: %w", err)
	}
	return r, nil
}

// joined returns the number of claims, or pods, that have telemetry, and the energy of all.
func joined(rows []present.HolderReport) (int, float64) {
	names, joules := map[[2]string]bool{}, 0.0
	for _, row := range rows {
		if len(row.Values) > 0 {
			names[[2]string{row.Namespace, row.Name}] = true
		}
		joules += energy(row.Values)
	}
	return len(names), joules
}

func energy(values []present.ValueReport) float64 {
	sum := 0.0
	for _, v := range values {
		if v.Quantity == driver.Energy.String() {
			sum += v.Value
		}
	}
	return sum
}
