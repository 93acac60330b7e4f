// Kubelet is that of an older Kubernetes, for a node that lags behind its control plane.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // Metrics of client-go, as the kubelet registers them.
	_ "k8s.io/component-base/metrics/prometheus/version"  // The metric kubernetes_build_info.
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() { os.Exit(cli.Run(app.NewKubeletCommand(context.Background()))) }
