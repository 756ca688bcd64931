package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

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
