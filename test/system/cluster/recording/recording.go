// Package recording saves the answers of a cluster's kubelet and API server, so that unit tests can
// use real data.
package recording

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/dra-exporter/dra-exporter/test/system/cluster"
)

// deadline limits how long one request may take.
const deadline = time.Minute

// Save creates a folder and writes these files: list.json, the answer of PodResources List with the
// field names of the proto file; events.jsonl, the initial events of a watch of the kubelet's Pods
// API, one per line, if the kubelet has that API; KIND.yaml, the objects of the API server; and
// README.md, which describes their origin. The files are written one after the other, so a change
// meanwhile is only in some of them.
func Save(ctx context.Context, c *cluster.Cluster, dir, origin string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the recording's folder: %w", err)
	}
	files := map[string]func(context.Context) ([]byte, error){
		"list.json": func(ctx context.Context) ([]byte, error) {
			return list(ctx, filepath.Join(c.KubeletRoot(), "pod-resources", "kubelet.sock"))
		},
		"README.md": func(ctx context.Context) ([]byte, error) { return readme(ctx, c, origin) },
	}
	podsSocket := filepath.Join(c.KubeletRoot(), "pods-api", "pods-api.sock")
	if _, err := os.Stat(podsSocket); err == nil {
		files["events.jsonl"] = func(ctx context.Context) ([]byte, error) { return events(ctx, podsSocket) }
	}
	for _, kind := range []string{"resourceslices", "resourceclaims", "pods"} {
		files[kind+".yaml"] = func(ctx context.Context) ([]byte, error) {
			return c.Kubectl(ctx, "", "get", kind, "--all-namespaces", "--output=yaml")
		}
	}
	for name, get := range files {
		if err := save(ctx, filepath.Join(dir, name), get); err != nil {
			return fmt.Errorf("record %s: %w", name, err)
		}
	}
	return nil
}

func save(ctx context.Context, path string, get func(context.Context) ([]byte, error)) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	content, err := get(ctx)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(bytes.TrimRight(content, "\n"), '\n'), 0o644)
}

func dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the kubelet: %w", err)
	}
	return conn, nil
}

func list(ctx context.Context, socket string) ([]byte, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // The error does not matter.
	answer, err := podresourcesv1.NewPodResourcesListerClient(conn).List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod resources: %w", err)
	}
	compact, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	var out bytes.Buffer
	err = json.Indent(&out, compact, "", " ") // The spaces that protojson writes differ from run to run.
	return out.Bytes(), err
}

// event is an event of the Pods API with the pod as JSON.
type event struct {
	Type string      `json:"type"`
	Pod  *corev1.Pod `json:"pod,omitempty"`
}

func events(ctx context.Context, socket string) ([]byte, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // The error does not matter.
	stream, err := podsv1alpha1.NewPodsClient(conn).WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	var out bytes.Buffer
	for lines := json.NewEncoder(&out); ; {
		received, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("watch pods: %w", err)
		}
		e := event{Type: received.GetType().String()}
		done := received.GetType() == podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE
		if !done {
			e.Pod = &corev1.Pod{}
			if err := e.Pod.Unmarshal(received.GetPod()); err != nil {
				return nil, fmt.Errorf("decode a pod: %w", err)
			}
			e.Pod.ManagedFields = nil // kubectl omits them too.
		}
		if err := lines.Encode(e); err != nil {
			return nil, fmt.Errorf("encode an event: %w", err)
		}
		if done {
			return out.Bytes(), nil
		}
	}
}

func readme(ctx context.Context, c *cluster.Cluster, origin string) ([]byte, error) {
	version, err := c.Kubectl(ctx, "", "version", "--output=yaml")
	if err != nil {
		return nil, err
	}
	kubelet, err := c.Kubectl(ctx, "", "get", "nodes", "--output=jsonpath={.items[*].status.nodeInfo.kubeletVersion}")
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `# A recording

Made on %s by %s. The files have the responses of a real kubelet and API server of a cluster of
test/system/cluster, indented and without managedFields: list.json is the response of PodResources List
(v1), events.jsonl has the first events of a watch of the Pods API, where the kubelet serves it, the
others are API objects. The version of the kubelet is %s.

~~~yaml
%s~~~
`, time.Now().UTC().Format(time.DateOnly), origin, kubelet, version), nil
}
