// Kube is the whole control plane and node agent of Kubernetes in one program, as busybox is: its
// first argument says which command of Kubernetes it is. A process constructs one of them only, so
// that their flags, feature gates and metrics never meet.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	_ "time/tzdata" // CronJobs name time zones.

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's ways to authenticate.
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // Metrics of client-go, as the commands register them.
	_ "k8s.io/component-base/metrics/prometheus/version"  // The metric kubernetes_build_info.
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	name := os.Args[1]
	os.Args = slices.Delete(os.Args, 0, 1)
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "cri":
		runCRI(os.Args[1:])
	case "kube-apiserver":
		run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		run(controllermanager.NewControllerManagerCommand())
	case "kube-scheduler":
		run(scheduler.NewSchedulerCommand())
	case "kubelet":
		run(kubelet.NewKubeletCommand(context.Background()))
	case "kubectl":
		util.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
	default:
		usage()
	}
}

func run(command *cobra.Command) { os.Exit(cli.Run(command)) }

func usage() {
	names := []string{"etcd", "cri", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"}
	fmt.Fprintf(os.Stderr, "usage: kube %s [argument...]\n", strings.Join(names, "|"))
	os.Exit(2)
}
