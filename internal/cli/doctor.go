package cli

import (
	"context"
	"errors"
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
			w.Calls = []doctor.Call{{Name: "authorization", Make: mayLook}, {Name: "round trip", Make: roundTrip}}
			return w.Report(cmd.Context(), env.Stdout)
		},
	}
	r.flags(cmd)
	return cmd
}

// mayLook asks for what every operator and viewer may see.
func mayLook(ctx context.Context, c transport.Conn) (string, error) {
	err := askDenials(ctx, c)
	if transport.CodeOf(err) == transport.CodeDenied {
		err = hint(err, "the broker knows this certificate, and everything up to here works; only an operator or a viewer may look into the broker")
	}
	return "an operator or a viewer", err
}

// roundTrip measures the same, now that everything is warm.
func roundTrip(ctx context.Context, c transport.Conn) (string, error) {
	began := time.Now()
	if err := askDenials(ctx, c); err != nil {
		return "", err
	}
	return doctor.Took(began), nil
}

func askDenials(ctx context.Context, c transport.Conn) error {
	over, ok := c.(*transportgrpc.Conn)
	if !ok {
		return errors.New("operators ask the broker over gRPC only")
	}
	s, err := hawserv1.NewInspectionServiceClient(over.Calls()).ListDenials(ctx, &hawserv1.ListDenialsRequest{})
	return told(received(s, err, func(*hawserv1.ListDenialsResponse) error { return nil }))
}
