package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/telemetry"
)

func versionCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(stdout, telemetry.Version(program))
			return err
		},
	}
}

// forgetClusterCommand works on the store of a broker that is stopped: the
// store's lock keeps it off one that runs.
func forgetClusterCommand(stdout io.Writer) *cobra.Command {
	cfg := defaults()
	cmd := &cobra.Command{
		Use:   "forget-cluster NAME",
		Short: "Let another cluster take over a name; the broker must be stopped",
		Long: `Let another cluster take over a name; the broker must be stopped.

A broker remembers which cluster an agent spoke for, and refuses another one under
the same name. After a cluster was replaced for good, this forgets the old one; its
works stay and go to the new cluster.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cfg.load(cmd.Flags()); err != nil {
				return err
			}
			return forgetCluster(cmd, cfg, args[0], stdout)
		},
	}
	cfg.addFlags(cmd.Flags())
	return cmd
}

func forgetCluster(cmd *cobra.Command, c *config, cluster string, stdout io.Writer) (err error) {
	if _, err := os.Stat(c.DataDir); err != nil { // opening would make a new store
		return fmt.Errorf("store: %w", err)
	}
	s, err := pebble.Open(pebble.Options{Dir: c.DataDir})
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.ForgetCluster(cmd.Context(), cluster); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "the next agent of %s may be of any cluster\n", cluster)
	return err
}
