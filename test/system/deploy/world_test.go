// Package deploy installs the chart's DaemonSet with the image of make image-tar on a real
// Kubernetes with real containers. A real Prometheus scrapes it with the settings of the chart's
// PodMonitor.
//
// $DRA_EXPORTER is the path of the program in the image, $PROMETHEUS that of Prometheus.
package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/deployments/chart"
	"github.com/dra-exporter/dra-exporter/deployments/image"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	release   = "dra-exporter" // and its DaemonSet's name
	namespace = "dra-exporter"
	imageName = "ghcr.io/dra-exporter/dra-exporter:test"

	startTimeout = 3 * time.Minute
)

// world is a cluster with the chart installed.
type world struct {
	*testing.T
	cluster *cluster.Cluster
	client  kubernetes.Interface
	network network
	vendor  vendor
	values  map[string]any
	monitor *monitoringv1.PodMonitor  // of the installed objects
	checks  map[string]corev1.PodSpec // the pods that run dra-exporter check, by what is missing
}

// newWorld starts a cluster with holders of devices, a vendor's exporter and the image.
func newWorld(t *testing.T) *world {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Options{Runtime: cluster.Containerd, Log: os.Stderr})
	must.Do(t, err)
	t.Cleanup(func() {
		expect.OK(t, c.Stop())
	})
	w := &world{T: t, cluster: c, network: network(filepath.Join(filepath.Dir(c.Root()), "ns", "net"))}
	config, err := c.Client()
	must.Do(t, err)
	if w.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	w.kubectl("apply", "-f", filepath.Join("..", "cluster", "testdata", "workloads.yaml"), "-f",
		filepath.Join("testdata", "nic.yaml"))
	tar := filepath.Join(t.TempDir(), "image.tar")
	program := os.Getenv("DRA_EXPORTER")
	must.That(t, program != "", "DRA_EXPORTER is not set: run this with make")
	must.Do(t, image.Write(tar, image.Config{Program: program, Name: imageName, Created: time.Unix(0, 0)}))
	must.Do(t, c.ImportImage(t.Context(), tar))
	w.values = object{
		"image":      object{"tag": "test"},
		"paths":      object{"cdi": []any{"/var/run/cdi"}},
		"sources":    object{"scrape": w.vendor.start(t, w.client, w.network)},
		"zeroHold":   "5s",
		"podMonitor": object{"enabled": true, "interval": interval.String(), "scrapeTimeout": "2s"},
		"web":        object{"kubeAuthorization": object{"enabled": true}},
	}
	maps.Copy(w.values, nvidia(t))
	return w
}

// render renders the chart with more values.
func (w *world) render(more map[string]any, tests bool) []string {
	values := maps.Clone(w.values)
	maps.Copy(values, more)
	documents, err := chart.Render(filepath.Join("..", "..", "..", "deployments", "helm", "dra-exporter"), chart.Release{
		Name: release, Namespace: namespace, Values: values,
	}, tests)
	must.Do(w, err)
	return documents
}

// install renders the chart with more values, applies it and waits for the rollout.
func (w *world) install(more map[string]any) {
	var applied []string
	for _, document := range w.render(more, false) {
		var kind metav1.TypeMeta
		must.Do(w, yaml.Unmarshal([]byte(document), &kind))
		if kind.Kind != "PodMonitor" { // kinds that only clusters with the operator have
			applied = append(applied, document)
			continue
		}
		w.monitor = &monitoringv1.PodMonitor{}
		must.Do(w, yaml.UnmarshalStrict([]byte(document), w.monitor))
	}
	w.apply(applied...)
	w.kubectl("rollout", "status", "daemonset/"+release, "-n", namespace, "--timeout="+startTimeout.String())
}

func (w *world) apply(documents ...string) {
	must.Get(w.cluster.Kubectl(w.Context(), strings.Join(documents, "---\n"), "apply", "-f", "-"))(w)
}

func (w *world) kubectl(args ...string) string {
	out := must.Get(w.cluster.Kubectl(w.Context(), "", args...))(w)
	return string(out)
}

// pods returns the pods of the DaemonSet that are not terminating.
func (w *world) pods() []corev1.Pod {
	var all corev1.PodList
	raw := w.kubectl("get", "pods", "-n", namespace, "-l", "app.kubernetes.io/name="+release, "-o", "json")
	must.Do(w, json.Unmarshal([]byte(raw), &all))
	var out []corev1.Pod
	for i := range all.Items {
		if all.Items[i].DeletionTimestamp == nil {
			out = append(out, all.Items[i])
		}
	}
	return out
}

// startPrometheus starts a Prometheus in the network of the pods, which scrapes with the settings
// of the PodMonitor.
func (w *world) startPrometheus(address string) live.Prometheus {
	config := prometheusConfig(w.T, w.monitor, w.cluster.Kubeconfig(), func(name, key string) (value string) {
		live.Await(w, startTimeout, key+" of Secret "+name, func() error {
			s, err := w.client.CoreV1().Secrets(namespace).Get(w.Context(), name, metav1.GetOptions{})
			if err == nil && len(s.Data[key]) == 0 {
				err = os.ErrNotExist
			}
			if err == nil {
				value = string(s.Data[key])
			}
			return err
		})
		return value
	})
	return live.StartPrometheus(w, live.PrometheusOptions{
		Config: config, Command: w.cluster.Command, Client: w.network.client(), Address: address,
	})
}

// network is a network namespace other than the test's, by its path. A socket belongs to the
// namespace in which it was created.
type network string

// within calls do within the network namespace.
func (n network) within(do func() error) error {
	runtime.LockOSThread() // stays locked if the thread cannot return: it ends with its goroutine
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer unix.Close(home)
	there, err := unix.Open(string(n), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer unix.Close(there)
	if err := unix.Setns(there, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	err = do()
	back := unix.Setns(home, unix.CLONE_NEWNET)
	if back == nil {
		runtime.UnlockOSThread()
	}
	return errors.Join(err, back)
}

func (n network) dial(ctx context.Context, kind, address string) (conn net.Conn, err error) {
	err = n.within(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, kind, address)
		return err
	})
	return conn, err
}

func (n network) listen(ctx context.Context, address string) (listener net.Listener, err error) {
	err = n.within(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address)
		return err
	})
	return listener, err
}

// client returns a client for servers in the network namespace.
func (n network) client() *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: n.dial, DisableKeepAlives: true}}
}

// watts is the constant power of every device.
const watts = 100.0

// vendor is a fake vendor's exporter.
type vendor struct {
	percent atomic.Int64 // the use of every device
}

// start starts it on the node for the devices in the slices. It returns the scrape configuration
// for it.
func (v *vendor) start(t *testing.T, client kubernetes.Interface, on network) map[string]any {
	slices := must.Get(client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}))(t)
	var uuids []string
	for i := range slices.Items {
		for _, d := range slices.Items[i].Spec.Devices {
			if uuid := d.Attributes["uuid"].StringValue; uuid != nil {
				uuids = append(uuids, *uuid)
			}
		}
	}
	listener := must.Get(on.listen(t.Context(), node.Address+":0"))(t)
	begun := time.Now()
	server := &http.Server{
		ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			var b strings.Builder
			for _, uuid := range uuids {
				fmt.Fprintf(&b, "energy_joules_total{uuid=%q} %v\n", uuid, watts*time.Since(begun).Seconds())
				fmt.Fprintf(&b, "power_watts{uuid=%q} %v\n", uuid, watts)
				fmt.Fprintf(&b, "utilization_percent{uuid=%q} %d\n", uuid, v.percent.Load())
			}
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = fmt.Fprint(w, &b)
		}),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return map[string]any{"endpoints": []any{map[string]any{
		"name": "vendor", "url": "http://" + listener.Addr().String() + "/metrics", "interval": "1s", "refresh": "0s",
		"driver": gpudriver.Name,
		"match":  map[string]any{"label": "uuid", "hardware": "uuid"},
		"metrics": []any{
			map[string]any{"name": "energy_joules_total", "quantity": "energy"},
			map[string]any{"name": "power_watts", "quantity": "power"},
			map[string]any{"name": "utilization_percent", "quantity": "utilization", "scale": 0.01},
		},
	}}}
}

// nvidia installs a fake of NVIDIA's library on the node. It returns the values that mount it into
// the container by its path, and the folder of the files that it opens, as the library opens
// /dev/nvidia*.
func nvidia(t *testing.T) object {
	dir := t.TempDir()
	machine := must.Get(nvmltest.New(t.Context(), dir))(t)
	machine.Reset(2)
	must.Do(t, machine.Live())
	return object{
		"nvidia":            object{"library": machine.Library},
		"extraVolumes":      []any{object{"name": "nvidia-files", "hostPath": object{"path": dir}}},
		"extraVolumeMounts": []any{object{"name": "nvidia-files", "mountPath": dir}},
	}
}
