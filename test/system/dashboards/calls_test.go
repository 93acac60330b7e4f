package dashboards

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
)

// TestDriverCalls compares what the Exporter dashboard shows of the kubelet's metrics (Kubernetes
// 1.37, pkg/kubelet/metrics) and of those of NVIDIA's DRA driver (v0.5, pkg/metrics) with
// arithmetic by hand: of two nodes, the kubelet of one of which is scraped twice, over 15 minutes.
func TestDriverCalls(t *testing.T) {
	t.Parallel()
	s := story{name: "calls", alone: true}
	add := func(name, labels string, value course) { s.series = append(s.series, series{name, labels, value}) }
	of := func(node, instance, job string) string {
		return fmt.Sprintf("cluster=%q, node=%q, instance=%q, job=%q", "c", node, instance, job)
	}
	// histogram returns a histogram with this number of requests in each minute, each of which took
	// this number of seconds.
	histogram := func(name, labels string, perMinute, seconds float64) {
		add(name+"_count", labels, rising(perMinute))
		add(name+"_sum", labels, rising(perMinute*seconds))
	}
	const (
		prepare = `driver_name="gpu.x", method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", `
		nvidia  = `driver="gpu.nvidia.com", operation="prepare"`
	)
	for _, kubelet := range []string{of("n1", "n1:10250", "kubelet"), of("n1", "n1:10250", "agent")} {
		histogram("dra_grpc_operations_duration_seconds", prepare+`grpc_status_code="OK", `+kubelet, 2, 0.5)
		histogram("dra_grpc_operations_duration_seconds", prepare+`grpc_status_code="Canceled", `+kubelet, 0, 0)
		histogram("dra_operations_duration_seconds",
			`operation_name="PrepareResources", is_error="false", `+kubelet, 4, 0.25)
	}
	kubelet := of("n2", "n2:10250", "kubelet")
	histogram("dra_grpc_operations_duration_seconds", prepare+`grpc_status_code="OK", `+kubelet, 1, 2)
	histogram("dra_operations_duration_seconds", `operation_name="PrepareResources", is_error="true", `+kubelet, 1, 3)
	for node, seconds := range map[string]float64{"n1": 0.2, "n2": 0.4} {
		plugin := of(node, node+":8080", "nvidia-dra-driver-gpu")
		histogram("nvidia_dra_request_duration_seconds", nvidia+", "+plugin, 2, seconds)
		add("nvidia_dra_requests_inflight", nvidia+", "+plugin, always(seconds*10/2))
		add("nvidia_dra_node_prepare_errors_total", `driver="gpu.nvidia.com", error_type="cdi", `+plugin, rising(0.2))
	}

	var file strings.Builder
	write(&file, s)
	for _, want := range []struct {
		panel, column string
		samples       []string // labels and value
	}{
		{"Calls of drivers by the kubelet", "Calls", []string{prepare + `grpc_status_code="OK"`, "45"}},
		{"Calls of drivers by the kubelet", "Mean", []string{prepare + `grpc_status_code="OK"`, "1"}},
		{"Claims of pods, by the kubelet", "Pods", []string{
			`operation_name="PrepareResources", is_error="false"`, "60",
			`operation_name="PrepareResources", is_error="true"`, "15",
		}},
		{"Claims of pods, by the kubelet", "Mean", []string{
			`operation_name="PrepareResources", is_error="false"`, "0.25",
			`operation_name="PrepareResources", is_error="true"`, "3",
		}},
		{"NVIDIA's DRA driver", "Failed", []string{`driver="gpu.nvidia.com", error_type="cdi"`, "6"}},
		{"NVIDIA's DRA driver", "Requests", []string{nvidia, "60"}},
		{"NVIDIA's DRA driver", "Mean", []string{nvidia, "0.3"}},
		{"NVIDIA's DRA driver", "In progress", []string{nvidia, "3"}},
	} {
		var samples []string
		for i := 0; i+1 < len(want.samples); i += 2 {
			samples = append(samples, fmt.Sprintf("{labels: '{%s}', value: %s}", want.samples[i], want.samples[i+1]))
		}
		fmt.Fprintf(&file, "  - {eval_time: 110m, expr: %q, exp_samples: [%s]}\n",
			"round("+columnOf(t, want.panel, want.column)+", 0.001)", strings.Join(samples, ", "))
	}
	testRules(t, nil, file.String())
}

// columnOf is the query of a column of a table of the Exporter dashboard.
func columnOf(t *testing.T, title, column string) string {
	t.Helper()
	return queryOf(t, "dra-exporter", title, func(_ int, of grafana.Target) bool { return of.Column == column })
}
