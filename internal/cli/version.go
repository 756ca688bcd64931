package cli

import (
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
			return printf(env.Stdout, "%s\n", telemetry.Version("hawser"))
		},
	}
}
