package cluster_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/image"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// waitLimit is the limit of every wait for the cluster or the exporter. It allows for a busy
// machine.
const waitLimit = 3 * time.Minute

// claims has the claims of testdata/workloads.yaml, by the name of the pod that uses them.
var claims = map[string]string{
	"default/single":     "default/single",
	"default/both-a":     "default/both",
	"default/both-b":     "default/both",
	"default/part-a":     "default/part-a",
	"default/part-b":     "default/part-b",
	"monitoring/monitor": "monitoring/monitor",
}

// holdEnv is the environment variable that makes the test binary start a cluster, print where it
// is, and wait to be killed. Its value is empty, or the programs of a cluster without containers as
// JSON.
const holdEnv = "CLUSTER_TEST_HOLD"

func TestMain(m *testing.M) {
	if programs, ok := os.LookupEnv(holdEnv); ok {
		hold(programs)
	}
	goleak.VerifyTestMain(m)
}

func hold(programs string) {
	dir, err := os.MkdirTemp("", "held-cluster-")
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println(dir)
	if programs == "" {
		_, err = cluster.Start(context.Background(), cluster.Options{Runtime: cluster.Containerd, Dir: dir})
	} else {
		var built node.Config
		if err = json.Unmarshal([]byte(programs), &built); err == nil {
			_, err = cluster.StartPrograms(context.Background(), cluster.Options{Dir: dir}, built)
		}
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

// TestCluster checks that clusters that run at the same time do not affect each other, and that
// each ends with the process that started it, also if that process is killed or gets Ctrl-C. One of
// the clusters belongs to a user without privileges.
func TestCluster(t *testing.T) {
	starting := startHolder(t, exec.Command(os.Args[0]), "")
	ready := startHolder(t, exec.Command(os.Args[0]), "")
	unprivileged := startUnprivileged(t)
	starting.end(t, syscall.SIGKILL) // During its start, or before.
	c := start(t)
	t.Run("Containers", func(t *testing.T) { testContainers(t, c) })
	ready.await(t, "ready")
	kubectl(t, c, "apply", "-f", "testdata/workloads.yaml")
	ready.end(t, syscall.SIGINT)
	awaitPods(t, c)
	t.Run("PodResources", func(t *testing.T) { testPodResources(t, c) })
	t.Run("Unprivileged", func(t *testing.T) { testUnprivileged(t, unprivileged) })
}

// awaitPods waits until the pods of testdata/workloads.yaml are ready.
func awaitPods(t *testing.T, c *cluster.Cluster) {
	for pod := range claims {
		namespace, name, _ := strings.Cut(pod, "/")
		kubectl(t, c, "wait", "--for=condition=Ready", "pod", name, "--namespace="+namespace, "--timeout="+waitLimit.String())
	}
}

// holder is another process that has started a cluster and keeps it running.
type holder struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	dir   string
}

// startHolder runs this test binary as a holder. programs is the value of holdEnv.
func startHolder(t *testing.T, cmd *exec.Cmd, programs string) *holder {
	h := &holder{cmd: cmd}
	h.cmd.Env = append(os.Environ(), holdEnv+"="+programs)
	h.cmd.Stderr = os.Stderr
	if h.cmd.SysProcAttr == nil {
		h.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	h.cmd.SysProcAttr.Setpgid = true
	stdout := must.Get(h.cmd.StdoutPipe())(t)
	must.Do(t, h.cmd.Start())
	t.Cleanup(func() { _ = h.cmd.Process.Kill() })
	h.lines = bufio.NewScanner(stdout)
	must.That(t, h.lines.Scan(), "the other process does not say where its cluster is")
	h.dir = h.lines.Text()
	t.Cleanup(func() { _ = os.RemoveAll(h.dir) })
	return h
}

func (h *holder) await(t *testing.T, want string) {
	must.That(t, h.lines.Scan() && h.lines.Text() == want, "the other process says %q, want %q", h.lines.Text(), want)
}

// end sends a signal to the holder's process group, as a terminal does, and checks that soon no
// process of its cluster is left.
func (h *holder) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	must.Do(t, syscall.Kill(-h.cmd.Process.Pid, signal))
	_ = h.cmd.Wait() // The error only says that the process was killed.
	deadline := time.Now().Add(waitLimit)
	for len(leftovers(t, h.dir)) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("left after its end: %q", leftovers(t, h.dir))
		}
		time.Sleep(50 * time.Millisecond)
	}
	expect.OK(t, cluster.Down(h.dir))
	_, err := os.Stat(filepath.Join(h.dir, "etcd"))
	expect.That(t, errors.Is(err, os.ErrNotExist), "the files of the killed cluster are left: %v", err)
}

// start starts a cluster. At the end of the test it stops the cluster and checks that no process
// and no file is left.
func start(t *testing.T) *cluster.Cluster {
	begin := time.Now()
	c := must.Get(cluster.Start(t.Context(), cluster.Options{Runtime: cluster.Containerd, Log: os.Stderr}))(t)
	t.Logf("started in %v", time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		begin := time.Now()
		expect.OK(t, c.Stop())
		t.Logf("stopped in %v", time.Since(begin).Round(time.Millisecond))
		_, err := os.Stat(c.Dir())
		expect.That(t, errors.Is(err, os.ErrNotExist), "the cluster's folder is left: %v", err)
		left := leftovers(t, c.Dir())
		expect.That(t, len(left) == 0, "left after its end: %q", left)
	})
	return c
}

// leftovers returns the processes, mounts and cgroups whose description contains the folder's path.
func leftovers(t *testing.T, dir string) []string {
	var left []string
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/self/mountinfo", "/proc/self/cgroup"} {
		files := must.Get(filepath.Glob(pattern))(t)
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err == nil && strings.Contains(string(content), dir) {
				left = append(left, file+": "+strings.ReplaceAll(string(content), "\x00", " "))
			}
		}
	}
	name := strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-")
	must.Do(t, filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == name {
			left = append(left, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}))
	return left
}

func kubectl(t *testing.T, c *cluster.Cluster, args ...string) string {
	output := must.Get(c.Kubectl(t.Context(), "", args...))(t)
	return string(output)
}

// share is a device or a share of a device.
type share struct{ Driver, Pool, Device, Share string }

func compare(a, b share) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Share, b.Share))
}

// allocated returns the devices that the scheduler allocated to each claim.
func allocated(t *testing.T, c *cluster.Cluster) map[string][]share {
	var list resourceapi.ResourceClaimList
	must.Do(t, json.Unmarshal([]byte(kubectl(t, c, "get", "resourceclaims", "-A", "-o", "json")), &list))
	out := make(map[string][]share)
	for _, claim := range list.Items {
		if claim.Status.Allocation == nil {
			continue
		}
		var shares []share
		for _, r := range claim.Status.Allocation.Devices.Results {
			s := share{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
			if r.ShareID != nil {
				s.Share = string(*r.ShareID)
			}
			shares = append(shares, s)
		}
		slices.SortFunc(shares, compare)
		out[claim.Namespace+"/"+claim.Name] = shares
	}
	return out
}

// kubelet returns a client for the kubelet's PodResources socket.
func kubelet(t *testing.T, c *cluster.Cluster) podresources.PodResourcesListerClient {
	conn := must.Get(grpc.NewClient("unix://"+c.KubeletRoot()+"/pod-resources/kubelet.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return podresources.NewPodResourcesListerClient(conn)
}

// testPodResources checks that PodResources lists what the scheduler allocated. It also checks two
// quirks that the exporter must handle: the CDI names of a claim's devices accumulate from one
// device to the next, and admin access is not shown.
func testPodResources(t *testing.T, c *cluster.Cluster) {
	resp := must.Get(kubelet(t, c).List(t.Context(), &podresources.ListPodResourcesRequest{}))(t)
	given := allocated(t, c)
	want, got := make(map[string][]share), make(map[string][]share)
	for pod, claim := range claims {
		want[pod] = given[claim]
	}
	for _, pod := range resp.PodResources {
		name := pod.Namespace + "/" + pod.Name
		for _, claim := range pod.Containers[0].DynamicResources {
			for i, r := range claim.ClaimResources {
				got[name] = append(got[name], share{r.DriverName, r.PoolName, r.DeviceName, r.GetShareId()})
				expect.That(t, len(r.CdiDevices) == i+1,
					"%s: device %d has %d CDI names: does the kubelet no longer accumulate them?", name, i, len(r.CdiDevices))
			}
		}
		slices.SortFunc(got[name], compare)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the kubelet and the API differ (-API +kubelet):\n%s", diff)
	}
	if n := len(got["monitoring/monitor"]); n != gpudriver.GPUs {
		t.Errorf("the monitor is listed with %d devices, want all %d", n, gpudriver.GPUs)
	}
	a, b := got["default/part-a"], got["default/part-b"]
	expect.That(t, len(a) == 1 && len(b) == 1 && a[0].Share != "" && a[0].Share != b[0].Share,
		"consumable capacity: shares are %v and %v, want one each with its own ID", a, b)
}

// testContainers checks what only real containers have: exit codes, environment variables from CDI,
// images and the pod network.
func testContainers(t *testing.T, c *cluster.Cluster) {
	tar := filepath.Join(t.TempDir(), "other.tar")
	must.Do(t, image.Write(tar, image.Config{Name: "docker.io/library/other:1", Program: filepath.Join(c.Dir(), "ctr")}))
	must.Do(t, c.ImportImage(t.Context(), tar))
	kubectl(t, c, "apply", "-f", "testdata/containers.yaml")
	for pod, want := range map[string]struct {
		phase corev1.PodPhase
		logs  string
	}{
		"succeeds":      {corev1.PodSucceeded, ""},
		"fails":         {corev1.PodFailed, ""},
		"other-program": {corev1.PodSucceeded, "containerd CLI"},
		"environment":   {corev1.PodRunning, "GPU_DEVICE_0=gpu-"},
		"server":        {corev1.PodRunning, "sent 10"},
	} {
		awaitPod(t, c, pod, want.phase, want.logs)
	}
	kubectl(t, c, "exec", "environment", "--", "/bin/sleep", "1ms")
	kubectl(t, c, "delete", "-f", "testdata/containers.yaml", "--wait=false")
}

// awaitPod waits until a pod is in a phase and its log contains a text.
func awaitPod(t *testing.T, c *cluster.Cluster, name string, phase corev1.PodPhase, logs string) {
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(200 * time.Millisecond) {
		err := podIs(t, c, name, phase, logs)
		if err == nil {
			return
		}
		must.That(t, !time.Now().After(deadline), "%v", err)
	}
}

func podIs(t *testing.T, c *cluster.Cluster, name string, phase corev1.PodPhase, logs string) error {
	var pod corev1.Pod
	if err := json.Unmarshal([]byte(kubectl(t, c, "get", "pod", name, "-o", "json")), &pod); err != nil {
		return err
	}
	if pod.Status.Phase != phase {
		return fmt.Errorf("pod %s is %s, want %s: %+v", name, pod.Status.Phase, phase, pod.Status.ContainerStatuses)
	}
	if said := kubectl(t, c, "logs", name); !strings.Contains(said, logs) {
		return fmt.Errorf("pod %s says %q, want %q", name, said, logs)
	}
	return nil
}

// nobody is the ID of a user without any privileges.
const nobody = 65534

// startUnprivileged starts a cluster without containers as user nobody.
func startUnprivileged(t *testing.T) *holder {
	programs := must.Get(cluster.BuildPrograms(t.Context(), cluster.Options{Log: os.Stderr}))(t)
	programs.Program = lend(t, programs.Program)
	programs.Kubelet, programs.Self = programs.Program, lend(t, programs.Self)
	encoded := must.Get(json.Marshal(programs))(t)
	cmd := exec.Command(lend(t, os.Args[0]))
	cmd.Dir = os.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return startHolder(t, cmd, string(encoded))
}

// lend copies a program to a folder where every user can run it.
func lend(t *testing.T, program string) string {
	dir, err := os.MkdirTemp("", "lent") //nolint:usetesting // Other users can't enter the folder above t.TempDir.
	must.Do(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.Do(t, os.Chmod(dir, 0o755))
	lent := filepath.Join(dir, filepath.Base(program))
	if os.Link(program, lent) == nil {
		return lent
	}
	from, err := os.Open(program) // The program may be on another file system, so it is copied.
	must.Do(t, err)
	defer from.Close()
	to := must.Get(os.OpenFile(lent, os.O_CREATE|os.O_WRONLY, 0o755))(t)
	must.Get(io.Copy(to, from))(t)
	must.Do(t, to.Close())
	return lent
}

// testUnprivileged checks that pods get their devices in the cluster of an unprivileged user, and
// that nothing of the cluster remains after Ctrl-C.
func testUnprivileged(t *testing.T, h *holder) {
	h.await(t, "ready")
	info := must.Get(os.Stat(h.dir))(t)
	expect.Is(t, info.Sys().(*syscall.Stat_t).Uid, nobody, "the cluster is of user")
	c := must.Get(cluster.Attach(h.dir))(t)
	kubectl(t, c, "apply", "-f", "testdata/workloads.yaml")
	awaitPods(t, c)
	testPodResources(t, c)
	h.end(t, syscall.SIGINT)
}
