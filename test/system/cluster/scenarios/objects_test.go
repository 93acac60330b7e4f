package scenarios

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
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

func (n *namespace) no(err error) {
	must.Do(n, err)
}

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
