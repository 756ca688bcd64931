package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/hawser-io/hawser/internal/cmdline"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

func newDeny(env Env) *cobra.Command {
	r := remote{env: env}
	var reason string
	cmd := &cobra.Command{
		Use:   "deny ROLE/NAME | SERIAL",
		Short: "Keep an identity, or one certificate, out",
		Long: `Keep an identity, or one certificate, out of the broker.

Its connections end at once, and it is refused until somebody allows it again. Deny a
certificate by its serial number where its key was lost and its owner got another one:

  hawser deny $(openssl x509 -noout -serial -in agent.crt | cut -d= -f2)

Deny an identity where nobody is to come under its name, whatever certificate it has:

  hawser deny agent/cluster1 --reason "taken out of the rack"

Works stay as they are. The broker keeps what is denied in its store.

Where clusters join by themselves, take back on the hub that a cluster was accepted:

  hawser reject cluster cluster1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient) error {
				if _, err := c.Deny(ctx, &hawserv1.DenyRequest{Subject: args[0], Reason: reason}); err != nil {
					return err
				}
				if err := printf(env.Stdout, "%s is denied\n", args[0]); err != nil {
					return err
				}
				return warnUnknown(ctx, env, c, args[0])
			})
		},
	}
	r.flags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for who looks at it later")
	return cmd
}

// warnUnknown says that the broker does not know who is denied now. It is no error: a key that was lost is denied
// before anybody comes with it.
func warnUnknown(ctx context.Context, env Env, c hawserv1.AdminServiceClient, subject string) error {
	check := map[string]func(context.Context, hawserv1.AdminServiceClient, string) error{"agent": knownCluster, "source": knownSource}
	role, name, _ := strings.Cut(subject, "/")
	if check[role] == nil {
		return nil
	}
	err := check[role](ctx, c, name)
	var u *unknownError
	var h interface{ Hint() string }
	if !errors.As(err, &u) || !errors.As(err, &h) {
		return err
	}
	return printf(env.Stderr, "warning: %s\nhint: %s; if the name is misspelt, take it back with: hawser allow %s\n", u, h.Hint(), subject)
}

func newAllow(env Env) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{
		Use:               "allow ROLE/NAME | SERIAL",
		Short:             "Let in again who was denied",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: r.args(deniedNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient) error {
				if _, err := c.Allow(ctx, &hawserv1.AllowRequest{Subject: args[0]}); err != nil {
					return err
				}
				return printf(env.Stdout, "%s is allowed\n", args[0])
			})
		},
	}
	r.flags(cmd)
	return cmd
}

func newGetDenials(env Env) *cobra.Command {
	type item = hawserv1.ListDenialsResponse
	l := listing[item]{
		env: env, remote: remote{env: env}, kind: "Denial",
		path: (*item).GetSubject,
		meta: func(m *item) map[string]any { return objectMeta(m.GetSubject(), "", "") },
	}
	l.columns = []column[item]{
		{header: "SUBJECT", cell: (*item).GetSubject},
		{header: "AGE", cell: func(m *item) string { return age(env.Now(), m.GetAt()) }},
		{header: "SINCE", wide: true, cell: func(m *item) string { return m.GetAt().AsTime().Format(time.RFC3339) }},
		{header: "OPERATOR", cell: (*item).GetOperator},
		{header: "REASON", cell: (*item).GetReason},
	}
	cmd := &cobra.Command{
		Use:     "denials",
		Aliases: []string{"denial"},
		Short:   "Show who is denied: see hawser deny",
		Args:    cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.run(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient, _ string) (grpc.ServerStreamingClient[item], error) {
				return c.ListDenials(ctx, &hawserv1.ListDenialsRequest{})
			}, "")
		},
	}
	l.flags(cmd)
	return cmd
}
