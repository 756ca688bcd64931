package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/doctor"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

func newDoctor(env Env) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Walk the way to a broker step by step, and say what fails",
		Long: `Walk the way to a broker step by step, and say what fails: files, name, proxy, TCP,
TLS, clock, identity, authorization, round trip.

It stops at the first step that fails and says what to do, in words for whoever runs
the network. A proxy that inspects TLS is called so.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := r.ready(cmd); err != nil {
				return err
			}
			w := r.way(r.timeout)
			w.Calls = []doctor.Call{{Name: "authorization", Make: mayLook}, {Name: "round trip", Make: r.roundTrip}}
			var failed error
			err := w.Walk(cmd.Context(), func(step, found string) {
				if failed == nil {
					failed = say(env.Stdout, "ok    %-14s %s\n", step, found)
				}
			})
			if err != nil {
				return err
			}
			return failed
		},
	}
	r.flags(cmd)
	return cmd
}

// mayLook asks for what every operator and viewer may see.
func mayLook(ctx context.Context, c *transportgrpc.Conn) (string, error) {
	err := askDenials(ctx, c)
	if transport.CodeOf(err) == transport.CodeDenied {
		err = hint(err, "the broker knows this certificate, and everything up to here works; only an operator or a viewer may look into the broker")
	}
	return "an operator or a viewer", err
}

// roundTrip measures the same, now that everything is warm.
func (r *remote) roundTrip(ctx context.Context, c *transportgrpc.Conn) (string, error) {
	began := time.Now()
	if err := askDenials(ctx, c); err != nil {
		return "", err
	}
	return fmt.Sprintf("the broker answered in %s", time.Since(began).Round(100*time.Microsecond)), nil
}

func askDenials(ctx context.Context, c *transportgrpc.Conn) error {
	s, err := hawserv1.NewInspectionServiceClient(c.Calls()).ListDenials(ctx, &hawserv1.ListDenialsRequest{})
	return told(received(s, err, func(*hawserv1.ListDenialsResponse) error { return nil }))
}
