// Cluster starts and stops the Kubernetes cluster of package cluster from the command line:
//
//	cluster up        start a cluster; it runs until "cluster down"
//	cluster down      stop it
//	cluster kubectl   start kubectl as the administrator
//	cluster record    save the answers of the kubelet and the API server in a folder
//	cluster import    load images into containerd from tar files of docker save
//	cluster build     compile Kubernetes, another kubelet and containerd, unless the cache has them
//
// The other commands are internal: a cluster's own processes use them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/cpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/netdriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/recording"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	cancel()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: cluster up|down|kubectl|record|import|build")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	dir := flags.String("dir", filepath.Join(os.TempDir(), "dra-cluster"), "the folder of the cluster's files")
	var c node.Config
	runs := flags.String("runtime", string(cluster.Fake), "what runs containers: fake or containerd")
	kubelet := flags.String("kubelet", "", "up and build: the version of the kubelet; else its program")
	if args[0] == "node" || args[0] == "init" || args[0] == "driver" {
		flags.StringVar(&c.Program, "kube", "", "the program of Kubernetes")
		flags.StringVar(&c.Containerd, "containerd", "", "the folder of containerd's programs")
		flags.StringVar(&c.Workload, "workload", "", "the program of the image")
		flags.StringVar(&c.Gates, "gates", "", "the feature gates to set")
		flags.StringVar(&c.Bus, "bus", "", "the address of the D-Bus of logind")
		flags.BoolVar(&c.Rootless, "rootless", false, "in a user namespace")
		flags.BoolVar(&c.Persistent, "persistent", false, "stay when the standard input ends")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "up":
		return up(ctx,
			cluster.Options{Runtime: cluster.Runtime(*runs), Kubelet: *kubelet, Dir: *dir, Log: os.Stderr, Persistent: true})
	case "down":
		return cluster.Down(*dir)
	case "kubectl":
		return kubectl(ctx, *dir, flags.Args())
	case "record":
		return record(ctx, *dir, flags.Args())
	case "import":
		return importImages(ctx, *dir, flags.Args())
	case "build":
		return cluster.BuildAll(ctx, *kubelet, os.Stderr)
	case "node":
		c.Dir, c.Self = *dir, os.Args[0]
		return node.Supervise(ctx, os.Stdout, c, args[1:])
	case "init":
		c.Dir, c.Self, c.Kubelet = *dir, os.Args[0], *kubelet
		return node.Run(ctx, os.Stdin, os.Stdout, c)
	case "driver":
		return driver(ctx, *dir, c.Containerd != "")
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func up(ctx context.Context, o cluster.Options) error {
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return err
	}
	fmt.Printf("The cluster is ready. Its kubelet's root is %s; its logs are in %s.\n", c.KubeletRoot(),
		filepath.Join(c.Dir(), "log"))
	return nil
}

func kubectl(ctx context.Context, dir string, args []string) error {
	c, err := cluster.Attach(dir)
	if err != nil {
		return err
	}
	cmd := c.KubectlCommand(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

func record(ctx context.Context, dir string, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: cluster record FOLDER")
	}
	c, err := cluster.Attach(dir)
	if err != nil {
		return err
	}
	return recording.Save(ctx, c, args[0], "cluster record")
}

func importImages(ctx context.Context, dir string, files []string) error {
	c, err := cluster.Attach(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := c.ImportImage(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

// driver runs the device plugins and the DRA drivers: the driver of simulated GPUs and, with real
// containers, the drivers of real devices.
func driver(ctx context.Context, dir string, containers bool) error {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 500, 1000 // With the default rates, pods that start at the same time wait for their claims.
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	drivers := []plugin.Driver{gpudriver.Driver(node.Name, gpudriver.Files{
		Unhealthy: filepath.Join(dir, "unhealthy"), Replaced: filepath.Join(dir, "replaced"),
	})}
	running, ctx := errgroup.WithContext(ctx)
	if containers {
		nics, err := netdriver.New(ctx, client, log)
		if err != nil {
			return err
		}
		running.Go(func() error { return nics.Serve(ctx) })
		drivers = append(drivers, nics.Plugin(), cpudriver.Driver(runtime.NumCPU(), filepath.Join(dir, "cdi")))
	}
	root := filepath.Join(dir, "kubelet")
	for _, p := range deviceplugin.Plugins() {
		running.Go(func() error { return p.Run(ctx, root, log) })
	}
	for _, d := range drivers {
		running.Go(func() error {
			return plugin.Run(ctx, plugin.Config{
				Node:        node.Name,
				KubeletRoot: root,
				CDIFolder:   filepath.Join(dir, "cdi"),
				Journal:     filepath.Join(dir, "journal.jsonl"),
				Client:      client,
				Log:         log,
			}, d)
		})
	}
	return running.Wait()
}
