// A whole Kubernetes control plane for tests in one program: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler and kwok, upstream's own code, chosen by the first argument.
//
// It is Go because these five are: upstream publishes no binaries through a package registry, and the module proxy is where
// their source can be had, with checksums. It is one program because they share most of their packages.
//
// A component ends when its standard input closes, so that nothing outlives the tests, however they end.
package main

import (
	"fmt"
	"io"
	"os"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"

	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodelease "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
)

// Set by the harness; without it a component started by hand from a script with a closed input would end at once.
const stopWithInput = "EADT_STOP_WITH_INPUT"

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kwok":                    newKwok,
}

func newKwok() *cobra.Command {
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	ctx, _ := kwoklog.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	command := kwok.NewCommand(ctx)
	command.SetContext(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	return command
}

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	if os.Getenv(stopWithInput) != "" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	os.Args = os.Args[1:]
	name := os.Args[0]
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "keys":
		if len(os.Args) != 2 {
			usage()
		}
		if err := writeKeys(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case "node-stages": // how kwok makes nodes ready and keeps their leases; those of pods are the harness's own
		fmt.Printf("%s\n---\n%s\n", nodefast.DefaultNodeInit, nodelease.DefaultNodeHeartbeatWithLease)
		return
	}
	newCommand, known := components[name]
	if !known {
		usage()
	}
	if name == "kwok" {
		// cobra adds pflag.CommandLine to every command, and the Kubernetes components' packages have put a --version there
		// that clashes with kwok's.
		pflag.CommandLine = pflag.NewFlagSet(name, pflag.ExitOnError)
	}
	os.Exit(cli.Run(newCommand()))
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: control-plane etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kwok|node-stages|keys FOLDER [flags]")
	os.Exit(2)
}
