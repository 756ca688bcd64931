package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/pki"
)

func newPKI(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "pki",
		Short: "Make a certificate authority and certificates for development and first installs",
		Long: `Make a certificate authority and certificates for development and first installs.

  hawser pki init  --dir certs
  hawser pki issue --dir certs --role broker --name broker --host broker.example --host 10.0.0.7
  hawser pki issue --dir certs --role source --name hub1
  hawser pki issue --dir certs --role agent  --name cluster1

Keep ca.key secret: its holder can use any identity at the broker.`,
	}, newPKIInit(env), newPKIIssue(env))
}

// pkiFlags are the flags that both verbs have.
type pkiFlags struct {
	dir   string
	force bool
	valid time.Duration
}

func (f *pkiFlags) add(cmd *cobra.Command, lifetime time.Duration) {
	cmd.Flags().StringVar(&f.dir, "dir", "", "directory of the certificate authority (required)")
	cmd.Flags().BoolVar(&f.force, "force", false, "replace files that exist")
	cmd.Flags().DurationVar(&f.valid, "valid-for", lifetime, "validity of the certificate from now on")
}

func (f *pkiFlags) check(cmd *cobra.Command) error {
	if f.dir == "" {
		return usageOf(cmd, errors.New("--dir is not set: name the directory of the certificate authority"))
	}
	if f.valid <= 0 {
		return usageOf(cmd, fmt.Errorf("--valid-for %s: a certificate has to be valid for some time", f.valid))
	}
	return nil
}

func newPKIInit(env Env) *cobra.Command {
	var f pkiFlags
	cmd := &cobra.Command{
		Use:   "init --dir DIR",
		Short: "Make a certificate authority: DIR/ca.crt and DIR/ca.key",
		Args:  cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			d := pki.Dir(f.dir)
			a, err := d.Init("hawser development authority", pki.Starting(env.Now(), f.valid), f.force)
			switch {
			case errors.Is(err, pki.ErrExists):
				return hint(err, "use another --dir, or --force to replace the authority; what it issued will be rejected from then on")
			case err != nil:
				return err
			}
			return printf(env.Stdout, "wrote %s and %s, valid until %s\n", d.CACert(), d.CAKey(), day(a.NotAfter()))
		},
	}
	f.add(cmd, pki.AuthorityLifetime)
	return cmd
}

func newPKIIssue(env Env) *cobra.Command {
	var f pkiFlags
	var role string
	req := pki.Request{}
	cmd := &cobra.Command{
		Use:   "issue --dir DIR --role ROLE --name NAME",
		Short: "Issue a certificate: DIR/ROLE-NAME.crt and DIR/ROLE-NAME.key",
		Long: `Issue a certificate: DIR/ROLE-NAME.crt and DIR/ROLE-NAME.key.

NAME is the name of the cluster for the role agent and the source id for the
role source; for the others you choose it. The roles broker and webhook need --host
for each DNS name and IP address under which they are reached. For the roles source,
operator and viewer it prints the identity rule for the broker's configuration.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			var err error
			if req.Role, err = pki.ParseRole(role); err != nil {
				return usageOf(cmd, fmt.Errorf("--role: %w", err))
			}
			req.Valid = pki.Starting(env.Now(), f.valid)
			return issue(env, pki.Dir(f.dir), req, f.force)
		},
	}
	f.add(cmd, pki.CertificateLifetime)
	cmd.Flags().StringVar(&role, "role", "", "broker, agent, source, operator, viewer or webhook (required)")
	cmd.Flags().StringVar(&req.Name, "name", "", "cluster of an agent, source id of a source, else a name of your choice (required)")
	cmd.Flags().StringArrayVar(&req.Hosts, "host", nil, "DNS name or IP address of a broker or webhook; may be repeated")
	return cmd
}

func issue(env Env, d pki.Dir, req pki.Request, force bool) error {
	pair, err := d.Issue(req, force)
	switch {
	case errors.Is(err, pki.ErrExists):
		return hint(err, "use --force to replace it")
	case errors.Is(err, fs.ErrNotExist):
		return hint(err, "make the authority first: hawser pki init --dir %s", string(d))
	case errors.Is(err, pki.ErrInvalidHosts):
		return cmdline.Usage(hint(err, "give --host with the roles broker and webhook, once for each name or address, and with no other role"))
	case errors.Is(err, pki.ErrInvalidName):
		return cmdline.Usage(hint(err, "give --name the name of the cluster, the source id or a name of your choice"))
	case err != nil:
		return err
	}
	err = printf(env.Stdout, "wrote %s and %s, valid until %s\n", d.Cert(req.Role, req.Name), d.Key(req.Role, req.Name), day(pair.NotAfter))
	if err != nil || req.Role == pki.Broker || req.Role == pki.Webhook || req.Role == pki.Agent {
		return err // certificates of these roles need no identity rule
	}
	commonName, _ := pki.Subject(req.Role, req.Name)
	return printf(env.Stdout, "identity rule for the broker: {commonName: %q, role: %s, name: %s}\n", commonName, req.Role, req.Name)
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }
