package cli

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/local/demo"
	"github.com/hawser-io/hawser/internal/local/fleet"
)

const (
	// demoDir is the state directory of the demo, below the repository.
	demoDir = ".hawser-demo"
	// demoSubnet is the second byte of the demo's loopback addresses.
	demoSubnet = 77
)

// runByMake reports whether the Makefile started the demo, so that flags go into ARGS.
func runByMake() bool { return os.Getenv("HAWSER_RUN_BY") == "make" }

func newDemo(env Env) *cobra.Command {
	d := demo.Demo{Out: env.Stdout, Transport: fleet.GRPC, Brokers: 1, Command: env.name() + " demo %s"}
	if runByMake() {
		d.Command = `make demo ARGS="%s"`
	}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a hub, two managed clusters and Hawser between them on this machine",
		Long: `Run a hub, two managed clusters and Hawser between them on this machine, deliver
a first work, and keep everything running until Ctrl-C. It builds what it needs
from a checkout of the repository: minutes the first time, seconds afterwards.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if d.Root, err = filepath.Abs(d.Root); err != nil {
				return err
			}
			if d.Dir == "" {
				d.Dir = filepath.Join(d.Root, demoDir)
			}
			if d.Dir, err = filepath.Abs(d.Dir); err != nil {
				return err
			}
			err = d.Run(cmd.Context())
			if err != nil && cmd.Context().Err() != nil {
				return errors.New("the demo was stopped before it was done")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&d.Root, "root", ".", "checkout of the repository")
	cmd.Flags().StringVar(&d.Dir, "dir", "", "directory for certificates, stores and logs; emptied at the start (default ROOT/"+demoDir+")")
	cmd.Flags().Uint8Var(&d.Subnet, "subnet", demoSubnet, "N of the loopback addresses 127.N.0.x that the programs listen on")
	cmd.Flags().Var(&d.Transport, "transport", "transport: grpc, mqtt (Hawser broker) or mosquitto (instead of the Hawser broker)")
	cmd.Flags().IntVar(&d.Brokers, "brokers", d.Brokers, "number of brokers; several share a PostgreSQL server, and the tour kills each of them once")
	cmd.Flags().BoolVar(&d.Once, "once", false, "exit after the first work is applied; the exit status shows success")
	return cmd
}
