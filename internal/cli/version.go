package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/telemetry"
)

func newVersion(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cmdline.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(env.Stdout, telemetry.Version("hawser"))
			return err
		},
	}
}
