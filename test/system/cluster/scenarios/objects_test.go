package scenarios

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

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
	t.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, label := range labels {
		object.Labels[label] = "true"
	}
	n := &namespace{T: t, world: w, name: name}
	_, err := w.client.CoreV1().Namespaces().Create(t.Context(), object, metav1.CreateOptions{})
	n.no(err)
	eventually(t, "the namespace has its ServiceAccount", func() error {
		_, err := w.client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return n
}

func (n *namespace) no(err error) {
	n.Helper()
	must.Do(n, err)
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
	n.Helper()
	_, err := n.client.ResourceV1().ResourceClaims(n.name).Create(n.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: claimSpec(requests...),
	}, metav1.CreateOptions{})
	n.no(err)
}

// template creates a ResourceClaimTemplate.
func (n *namespace) template(name string, requests ...resourceapi.DeviceRequest) {
	n.Helper()
	_, err := n.client.ResourceV1().ResourceClaimTemplates(n.name).Create(n.Context(), &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimSpec(requests...)},
	}, metav1.CreateOptions{})
	n.no(err)
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
	n.Helper()
	_, err := n.client.CoreV1().Pods(n.name).Create(n.Context(),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	n.no(err)
}

// deployment creates a Deployment.
func (n *namespace) deployment(name string, replicas int32, spec corev1.PodSpec) {
	n.Helper()
	labels := map[string]string{"app": name}
	_, err := n.client.AppsV1().Deployments(n.name).Create(n.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: maps.Clone(labels)},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}, metav1.CreateOptions{})
	n.no(err)
}

// scale sets the number of replicas of a Deployment.
func (n *namespace) scale(name string, replicas int32) {
	n.Helper()
	scale, err := n.client.AppsV1().Deployments(n.name).GetScale(n.Context(), name, metav1.GetOptions{})
	n.no(err)
	scale.Spec.Replicas = replicas
	_, err = n.client.AppsV1().Deployments(n.name).UpdateScale(n.Context(), name, scale, metav1.UpdateOptions{})
	n.no(err)
}

// running waits until exactly count pods exist and all of them are running.
func (n *namespace) running(count int) {
	n.Helper()
	progresses(n.T, fmt.Sprintf("%d pods run", count), func() (int, error) {
		pods, err := n.client.CoreV1().Pods(n.name).List(n.Context(), metav1.ListOptions{})
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
	n.Helper()
	eventually(n.T, fmt.Sprintf("pod %s is %s", pod, phase), func() error {
		p, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.Phase != phase {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	})
}

// untilFinish returns the command of a container that runs until finish is called.
func untilFinish() []string { return []string{"told", "sleep", "0s"} }

// finish lets the running containers of a pod, or of all pods of the namespace if pod is empty, end
// with status 0, without the kubelet: as if they had done their work.
func (n *namespace) finish(pod string) {
	n.Helper()
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
	n.Helper()
	n.no(n.client.CoreV1().Pods(n.name).Delete(n.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: &graceSeconds}))
	n.gone(pod)
}

// gone waits until a pod no longer exists.
func (n *namespace) gone(pod string) {
	n.Helper()
	eventually(n.T, "the pod is gone", func() error {
		_, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), pod, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		default:
			return fmt.Errorf("pod %s is there", pod)
		}
	})
}

// clear deletes all pods and waits until they are gone.
func (n *namespace) clear() {
	n.Helper()
	n.no(n.client.CoreV1().Pods(n.name).DeleteCollection(n.Context(),
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}, metav1.ListOptions{}))
	n.running(0)
	n.agree(0)
}
