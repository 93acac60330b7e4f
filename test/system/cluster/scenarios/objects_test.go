package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/recording"
)

// namespace is a test's own namespace, with methods that create objects in it.
type namespace struct {
	*testing.T
	*world
	name string
}

// namespace creates a namespace and waits until pods can be created in it.
func (w *world) namespace(t *testing.T, name string, labels ...string) *namespace {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, label := range labels {
		object.Labels[label] = "true"
	}
	n := &namespace{T: t, world: w, name: name}
	create(n, w.client.CoreV1().Namespaces(), object)
	eventually(t, "the namespace has its ServiceAccount", func() error {
		_, err := w.client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return n
}

func (n *namespace) no(err error) { must.Do(n, err) }

func (n *namespace) pods() typedcorev1.PodInterface { return n.client.CoreV1().Pods(n.name) }

func (n *namespace) claims() typedresourcev1.ResourceClaimInterface {
	return n.client.ResourceV1().ResourceClaims(n.name)
}

func (n *namespace) getPod(name string) *corev1.Pod {
	return must.Get(n.pods().Get(n.Context(), name, metav1.GetOptions{}))(n)
}

func (n *namespace) getClaim(name string) *resourceapi.ResourceClaim {
	return must.Get(n.claims().Get(n.Context(), name, metav1.GetOptions{}))(n)
}

// create creates an object.
func create[T any](n *namespace, in interface {
	Create(context.Context, *T, metav1.CreateOptions) (*T, error)
}, object *T,
) {
	must.Get(in.Create(n.Context(), object, metav1.CreateOptions{}))(n)
}

// podIs waits until a pod is as wanted, and returns it.
func (n *namespace) podIs(name, what string, is func(*corev1.Pod) bool) (pod *corev1.Pod) {
	eventually(n.T, "pod "+name+" "+what, func() (err error) {
		if pod, err = n.pods().Get(n.Context(), name, metav1.GetOptions{}); err == nil && !is(pod) {
			err = fmt.Errorf("it is %+v", pod.Status)
		}
		return err
	})
	return pod
}

// each waits until a check of each of some exporters returns nil.
func (n *namespace) each(what string, by []*running, check func(*running) error) {
	eventually(n.T, what, func() error { return ofAll(by, check) })
}

// ofAll returns the errors of a check of exporters, with their names.
func ofAll(by []*running, check func(*running) error) error {
	var wrong error
	for _, e := range by {
		if err := check(e); err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("%s: %w", e.name, err))
		}
	}
	return wrong
}

// snapshots makes a check of exporters of one of snapshots.
func snapshots(check func(*running, *present.Report) error) func(*running) error {
	return func(e *running) error {
		r, err := e.report()
		if err == nil {
			err = check(e, r)
		}
		return err
	}
}

// user creates claim "one" for a GPU and pod "user", and waits until the pod runs.
func (n *namespace) user(spec corev1.PodSpec) {
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("user", spec)
	n.running(1)
}

// request returns a request for one device of a class.
func request(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}
}

// some changes a request to ask for several devices.
func some(r resourceapi.DeviceRequest, count int64) resourceapi.DeviceRequest {
	r.Exactly.AllocationMode, r.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, count
	return r
}

// memory changes a request to ask for an amount of memory of the device with this index.
func memory(r resourceapi.DeviceRequest, index int, amount string) resourceapi.DeviceRequest {
	r.Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(amount)},
	}
	r.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.attributes[%q].index == %d", gpudriver.Name, index),
	}}}
	return r
}

func claimSpec(requests ...resourceapi.DeviceRequest) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}
}

// claim creates a ResourceClaim.
func (n *namespace) claim(name string, requests ...resourceapi.DeviceRequest) {
	create(n, n.claims(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: claimSpec(requests...),
	})
}

// template creates a ResourceClaimTemplate.
func (n *namespace) template(name string, requests ...resourceapi.DeviceRequest) {
	create(n, n.client.ResourceV1().ResourceClaimTemplates(n.name), &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimSpec(requests...)},
	})
}

// podSpec returns a pod with one container, main, which uses a claim under the name devices.
func podSpec(claim string, command ...string) corev1.PodSpec {
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		Containers: []corev1.Container{{
			Name: "main", Image: "workload:1", Command: command,
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "devices"}}},
		}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: &claim}},
	}
}

// templateSpec is like podSpec, but the claim is created from a template.
func templateSpec(template string, command ...string) corev1.PodSpec {
	spec := podSpec("", command...)
	spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: &template}}
	return spec
}

// resourceSpec is like podSpec, but the pod requests an extended resource and names no claim.
func resourceSpec(name corev1.ResourceName, count string) corev1.PodSpec {
	spec := podSpec("")
	spec.ResourceClaims = nil
	limits := corev1.ResourceList{name: resource.MustParse(count)}
	spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: limits}
	return spec
}

// once sets the restart policy so that containers are not restarted.
func once(spec corev1.PodSpec) corev1.PodSpec {
	spec.RestartPolicy = corev1.RestartPolicyNever
	return spec
}

// pod creates a pod.
func (n *namespace) pod(name string, spec corev1.PodSpec) {
	create(n, n.pods(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
}

// deployment creates a Deployment.
func (n *namespace) deployment(name string, replicas int32, spec corev1.PodSpec) {
	labels := map[string]string{"app": name}
	create(n, n.client.AppsV1().Deployments(n.name), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	})
}

// scale sets the number of replicas of a Deployment.
func (n *namespace) scale(name string, replicas int32) {
	deployments := n.client.AppsV1().Deployments(n.name)
	scale := must.Get(deployments.GetScale(n.Context(), name, metav1.GetOptions{}))(n)
	scale.Spec.Replicas = replicas
	must.Get(deployments.UpdateScale(n.Context(), name, scale, metav1.UpdateOptions{}))(n)
}

// running waits until exactly count pods exist and all of them are running.
func (n *namespace) running(count int) {
	progresses(n.T, fmt.Sprintf("%d pods run", count), func() (int, error) {
		pods, err := n.pods().List(n.Context(), metav1.ListOptions{})
		if err != nil {
			return 0, err
		}
		run, others := 0, ""
		for i := range pods.Items {
			s := &pods.Items[i].Status
			if s.Phase == corev1.PodRunning {
				run++
				continue
			}
			others = fmt.Sprintf("%s is %s: %+v", pods.Items[i].Name, s.Phase, s.Conditions)
		}
		if run != count || len(pods.Items) != count {
			return run + len(pods.Items), fmt.Errorf("%d of %d pods run; %s", run, len(pods.Items), others)
		}
		return 0, nil
	})
}

// phase waits until a pod is in a phase.
func (n *namespace) phase(pod string, phase corev1.PodPhase) {
	n.podIs(pod, "is "+string(phase), func(p *corev1.Pod) bool { return p.Status.Phase == phase })
}

// untilFinish returns the command of a container that runs until finish is called.
func untilFinish() []string { return []string{"told", "sleep", "0s"} }

// finish lets the running containers of a pod, or of all pods of the namespace if pod is empty, end
// with status 0, without the kubelet: as if they had done their work.
func (n *namespace) finish(pod string) {
	begun := false
	eventually(n.T, "the containers have finished", func() error {
		all, err := n.ownership.runtime.ListContainers(n.Context(), &runtimeapi.ListContainersRequest{})
		if err != nil {
			return err
		}
		running := 0
		for _, c := range all.GetContainers() {
			of := c.GetLabels()
			if c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || of["io.kubernetes.pod.namespace"] != n.name ||
				pod != "" && of["io.kubernetes.pod.name"] != pod {
				continue
			}
			if n.containers {
				err = errors.Join(err, tellProcesses(of["io.kubernetes.pod.uid"]))
			} else {
				stop := &runtimeapi.StopContainerRequest{ContainerId: c.GetId()}
				_, stopped := n.ownership.runtime.StopContainer(n.Context(), stop)
				err = errors.Join(err, stopped)
			}
			running++
		}
		begun = begun || running > 0
		if running > 0 || !begun {
			return errors.Join(err, fmt.Errorf("%d run", running))
		}
		return nil
	})
}

// remove deletes a pod with a grace period and waits until it is gone.
func (n *namespace) remove(pod string, graceSeconds int64) {
	n.delete(pod, &graceSeconds)
	n.gone(pod)
}

// delete deletes a pod, with its own grace period if none is given.
func (n *namespace) delete(pod string, graceSeconds *int64) {
	n.no(n.pods().Delete(n.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: graceSeconds}))
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// gone waits until a pod no longer exists.
func (n *namespace) gone(pod string) {
	eventually(n.T, "pod "+pod+" is gone", func() error {
		_, err := n.pods().Get(n.Context(), pod, metav1.GetOptions{})
		if err == nil {
			return errors.New("it is there")
		}
		return ignoreNotFound(err)
	})
}

// clear deletes all pods and waits until they are gone and hold nothing.
func (n *namespace) clear() {
	n.no(n.pods().DeleteCollection(n.Context(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)},
		metav1.ListOptions{}))
	n.running(0)
	n.agree(0)
}

// programPath is the environment variable with the path of the exporter.
const programPath = "DRA_EXPORTER"

// program is a running exporter.
type program struct {
	*live.Program
	client *http.Client

	mu  sync.Mutex
	cut float64 // requests that were cut off

	// The last snapshot and exposition are cached, because many tests request the same ones.
	snapshot   *present.Report
	tag        string
	exposition []byte
	parsed     live.Metrics
}

// flags returns the flags of all exporters, whatever their sources.
func (w *world) flags() []string {
	return []string{
		"--web.listen-address=127.0.0.1:0",
		"--web.last-scrape-timeout=0s",
		"--node-name=" + node.Name,
		"--metrics.quantity-source=on",
		"--metrics.details=on",
		"--kubelet.root=" + w.cluster.KubeletRoot(),
		"--path.podlogs=" + w.cluster.PodLogs(),
		"--path.cdi=" + w.cluster.CDI(),
		"--path.sysfs=" + w.sysfs,
		"--path.procfs=" + w.procfs,
		"--counter.zero-hold=0s",
		"--retention=1h",
		"--histograms=off", // dra_exporter_series counts them, and they are not in the text format.
	}
}

// startExporter starts the exporter and waits until it is ready. The exporter stops when the test
// ends.
func startExporter(t *testing.T, args []string) *program {
	path := os.Getenv(programPath)
	must.That(t, path != "",
		"$%s does not name the exporter: run make test-e2e, or build it and say where it is", programPath)
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "GOGC=400") // With the default GOGC, collection takes a quarter of its CPU time.
	p := &program{Program: live.Launch(t, cmd), client: &http.Client{
		Timeout: *waitLimit, Transport: &http.Transport{DisableCompression: true}, // Compression costs CPU time.
	}}
	t.Cleanup(p.client.CloseIdleConnections)
	eventually(t, "the exporter is ready", func() error {
		_, err := p.get("/readyz")
		return err
	})
	return p
}

func (p *program) get(path string) ([]byte, error) {
	body, _, err := p.getUnless("", path)
	return body, err
}

// getUnless sends a GET request with If-None-Match: tag. It returns the body and its entity tag;
// the body is nil if the tag still matches.
func (p *program) getUnless(tag, path string) (body []byte, tagged string, err error) {
	var a live.Answer
	for range 3 { // 16 readers are answered at once, and all scenarios read at the same time
		a, err = live.Ask(context.Background(), p.client, "http://"+p.Address+path, "If-None-Match", tag)
		refused := err == nil && a.Header.Get("Retry-After") != ""
		if !refused && (!errors.Is(err, io.ErrUnexpectedEOF) || !p.countsCut()) {
			break
		}
		time.Sleep(time.Second)
	}
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("get %s: %w", path, err)
	case tag != "" && a.Status == http.StatusNotModified:
		return nil, tag, nil
	case a.Status != http.StatusOK:
		return nil, "", fmt.Errorf("get %s: status %d: %.300s", path, a.Status, a.Body)
	}
	return a.Body, a.Header.Get("Etag"), nil
}

// countsCut reports whether the exporter has counted all requests that gave way to others, with one
// more that was cut off.
func (p *program) countsCut() bool {
	p.mu.Lock()
	p.cut++
	cut := p.cut
	p.mu.Unlock()
	time.Sleep(time.Second) // an answer is reused for so long
	a, err := live.Ask(context.Background(), p.client, "http://"+p.Address+"/metrics")
	if err != nil {
		return false
	}
	families, err := live.ParseMetrics(a.Body)
	if err != nil {
		return false
	}
	counted := 0.0
	for _, row := range families.Rows("dra_exporter_input_rejected_total", "input", "requests", "reason", "timeout") {
		counted += row.GetCounter().GetValue()
	}
	return counted >= cut
}

// report returns the last snapshot. The caller must not change it.
func (p *program) report() (*present.Report, error) {
	p.mu.Lock()
	last, tag := p.snapshot, p.tag
	p.mu.Unlock()
	body, tag, err := p.getUnless(tag, "/api/v1/snapshot")
	if err != nil {
		return nil, err
	}
	if body == nil {
		return last, nil
	}
	var r present.Report
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("decode the snapshot: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.snapshot, p.tag = &r, tag
	return &r, nil
}

// families scrapes the exporter. The caller must not change the result.
func (p *program) families() (live.Metrics, error) {
	body, err := p.get("/metrics")
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes.Equal(body, p.exposition) {
		return p.parsed, nil
	}
	families, err := live.ParseMetrics(body)
	if err == nil {
		p.exposition, p.parsed = body, families
	}
	return families, err
}

// value returns the value of the only series with these labels. labels are alternating names and
// values.
func (p *program) value(name string, labels ...string) (float64, error) {
	families, err := p.families()
	if err != nil {
		return 0, err
	}
	rows := families.Rows(name, labels...)
	if len(rows) != 1 {
		return 0, fmt.Errorf("%d series of %s%q, want 1", len(rows), name, labels)
	}
	return live.ValueOf(rows[0]), nil
}

// has returns nil if the only series with these labels has the value want.
func (p *program) has(name string, want float64, labels ...string) error {
	got, err := p.value(name, labels...)
	if err == nil && got != want {
		err = fmt.Errorf("%s%q is %v, want %v", name, labels, got, want)
	}
	return err
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// ticks waits until the exporter has made count more snapshots.
func (p *program) ticks(t *testing.T, count int) {
	var last time.Time
	seen := -1
	eventually(t, "there are new snapshots", func() error {
		r, err := p.report()
		if err != nil {
			return err
		}
		if r.Time.After(last) {
			last = r.Time
			seen++
		}
		if seen < count {
			return fmt.Errorf("%d of %d", seen, count)
		}
		return nil
	})
}

// waitLimit limits every wait for the cluster or the exporter. It allows for a busy machine.
var waitLimit = flag.Duration("wait-limit", 3*time.Minute, "how long a test waits for the cluster or the exporter")

// eventually calls is until it returns nil.
func eventually(t *testing.T, what string, is func() error) {
	progresses(t, what, func() (int, error) { return 0, is() })
}

// progresses is like eventually, but waits longer if the number that is returns changes within the
// limit.
func progresses(t *testing.T, what string, is func() (int, error)) {
	t.Helper()
	last, deadline := 0, time.Now().Add(*waitLimit)
	for ; ; time.Sleep(200 * time.Millisecond) {
		n, err := is()
		if err == nil {
			return
		}
		if n != last {
			last, deadline = n, time.Now().Add(*waitLimit)
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s: %v", *waitLimit, what, err)
		}
	}
}

var recordings = flag.String("record", "",
	"save what the cluster says of each scenario in a folder here, named after its namespace")

// record saves the state of the cluster if the flag is set. Other scenarios continue meanwhile, so
// the files may disagree about their namespaces.
func (n *namespace) record() {
	if *recordings != "" {
		n.no(recording.Save(n.Context(), n.cluster, filepath.Join(*recordings, n.name), "the scenario "+n.Name()))
	}
}
