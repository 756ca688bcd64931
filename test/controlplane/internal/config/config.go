// Package config turns the command line of the test control plane into a
// checked Config. It reads no file and no environment.
package config

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// maxNodes prevents that a typing error fills the cluster with nodes.
const maxNodes = 1000

// Config is the configuration of one control plane process.
type Config struct {
	// Dir is the absolute path of the state directory. One process owns it.
	Dir string
	// Name is the name of the cluster and the context in the kubeconfig.
	Name string
	// Port is the https port on 127.0.0.1, 1 to 65535. With 0 it is the port that the state directory remembers, or
	// a free one at the first start.
	Port int
	// Nodes is the number of simulated nodes, 0 to 1000. Without nodes, pods stay Pending.
	Nodes int
	// StopWithStdin ends the process when its standard input is closed.
	StopWithStdin bool
	// APIServerFlags are kube-apiserver flags that follow the built-in ones. The last flag of a name wins.
	APIServerFlags []string
	// ShowVersion: print the Kubernetes version instead of running a control plane.
	ShowVersion bool
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)

// Parse reads the arguments that follow the program's name. It returns pflag.ErrHelp for a help flag. Any other
// error names the flag to change.
func Parse(args []string) (Config, error) {
	var c Config
	fs := flagSet(&c)
	if err := fs.Parse(args); err != nil {
		return Config{}, err
	}
	if c.ShowVersion {
		return c, nil
	}
	own, extra := fs.Args(), []string(nil)
	if dash := fs.ArgsLenAtDash(); dash >= 0 {
		own, extra = own[:dash], own[dash:]
	}
	if len(own) > 0 {
		return Config{}, fmt.Errorf("unexpected argument %q: flags for kube-apiserver go after --", own[0])
	}
	c.APIServerFlags = extra
	return c, c.complete()
}

// Usage is the help text.
func Usage() string {
	var b strings.Builder
	b.WriteString(`Run a Kubernetes control plane for tests on 127.0.0.1: etcd, kube-apiserver,
controllers, and simulated nodes. The path of an administrator's kubeconfig is
printed when the cluster is ready. The same --dir continues where it stopped.

Usage:
  controlplane --dir DIR [flags] [-- kube-apiserver flags]

Flags:
`)
	b.WriteString(flagSet(&Config{}).FlagUsages())
	return b.String()
}

func flagSet(c *Config) *pflag.FlagSet {
	fs := pflag.NewFlagSet("controlplane", pflag.ContinueOnError)
	fs.SetOutput(io.Discard) // the caller prints errors and help
	fs.Usage = func() {}
	fs.StringVar(&c.Dir, "dir", "", "state directory of this cluster, created if absent (required)")
	fs.StringVar(&c.Name, "name", "", "name of the cluster and context in the kubeconfig (default the last element of --dir)")
	fs.IntVar(&c.Port, "port", 0, "https port on 127.0.0.1; 0: a free one, kept in --dir over restarts")
	fs.IntVar(&c.Nodes, "nodes", 0, "simulated nodes on which pods become Running, without containers; 0: pods stay Pending")
	fs.BoolVar(&c.StopWithStdin, "stdin", false, "stop when standard input closes, so that nothing outlives a test")
	fs.BoolVar(&c.ShowVersion, "version", false, "print the Kubernetes version and exit")
	return fs
}

// complete checks the values and fills in the defaults that depend on others.
func (c *Config) complete() error {
	if c.Dir == "" {
		return errors.New("--dir is required: it keeps the state of the cluster")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return fmt.Errorf("--dir %s: %w", c.Dir, err)
	}
	c.Dir = dir
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("--port %d: must be 1 to 65535, or 0 for a free port", c.Port)
	}
	if c.Nodes < 0 || c.Nodes > maxNodes {
		return fmt.Errorf("--nodes %d: must be 0 to %d", c.Nodes, maxNodes)
	}
	origin := "--name"
	if c.Name == "" {
		origin, c.Name = "the name taken from --dir", filepath.Base(dir)
	}
	if !namePattern.MatchString(c.Name) {
		return fmt.Errorf("%s is %q: pass a --name of letters, digits, '.' and '-'", origin, c.Name)
	}
	return nil
}
