package deploy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

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
