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
		Short: "Deny an identity, or one certificate",
		Long: `Deny an identity, or one certificate, at the broker.

Its connections end at once, and it is rejected until it is allowed again. Deny a
certificate by its serial number if its key was lost and its owner has a new one:

  hawser deny $(openssl x509 -noout -serial -in agent.crt | cut -d= -f2)

Deny an identity if no client may use its name, with any certificate:

  hawser deny agent/cluster1 --reason "taken out of the rack"

Works are not changed. The broker stores the denylist.

If clusters join by registration, revoke the acceptance of a cluster on the hub:

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
	cmd.Flags().StringVar(&reason, "reason", "", "reason, for people who read the entry later")
	return cmd
}

// warnUnknown prints a warning if the broker does not know the denied identity. This is no error: a lost key
// may be denied before its first use.
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
		Short:             "Allow a denied identity or certificate again",
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
		Short:   "Show denied identities and certificates: see hawser deny",
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
