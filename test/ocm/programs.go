package main

import (
	"flag"
	"fmt"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	"open-cluster-management.io/api/feature"
	"open-cluster-management.io/ocm/pkg/cmd/hub"
	"open-cluster-management.io/ocm/pkg/cmd/spoke"
	"open-cluster-management.io/ocm/pkg/features"
)

// program is a program of OCM. Only the selected one is created, because creating an agent adds its feature
// gates to a set of the whole process.
type program struct {
	make  func() *cobra.Command
	gates map[featuregate.Feature]featuregate.FeatureSpec // of a hub program; agents add their own
}

var programs = map[string]program{
	"registration controller": {hub.NewRegistrationController, feature.DefaultHubRegistrationFeatureGates},
	"registration agent":      {spoke.NewRegistrationAgent, nil},
	"server grpc":             {hub.NewGRPCServerCommand, nil},
	"work manager":            {hub.NewWorkController, feature.DefaultHubWorkFeatureGates},
	"work agent":              {spoke.NewWorkAgent, nil},
	"addon manager":           {hub.NewAddonManager, nil},
}

func run(args []string) error {
	const words = 2 // in a program's name
	p, ok := programs[strings.Join(args[:min(len(args), words)], " ")]
	if !ok {
		return fmt.Errorf("name a program: %s", strings.Join(names(), ", "))
	}
	if err := hurry(); err != nil {
		return err
	}
	pflag.CommandLine.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	pflag.CommandLine.AddGoFlagSet(flag.CommandLine)
	logs.AddFlags(pflag.CommandLine)
	logs.InitLogs()
	defer logs.FlushLogs()
	if p.gates != nil {
		if err := features.HubMutableFeatureGate.Add(p.gates); err != nil {
			return err
		}
		features.HubMutableFeatureGate.AddFlag(pflag.CommandLine)
	}
	command := p.make()
	command.SetArgs(args[words:])
	return command.Execute()
}

func names() []string {
	var out []string
	for name := range programs {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}
