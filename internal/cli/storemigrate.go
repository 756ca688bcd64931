package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/internal/broker/store/storecopy"
	"github.com/hawser-io/hawser/internal/cmdline"
)

// database has the flags of hawser-broker that name a store in PostgreSQL.
type database struct{ url, passwordFile string }

func (d *database) flags(cmd *cobra.Command) {
	d.refusedFlags(cmd)
	cmd.Flags().StringVar(&d.passwordFile, "store-password-file", "", "file with the password for PostgreSQL, or with an access token")
	cmd.Flags().Lookup("store-url").Usage = "connection string of PostgreSQL, as --store-url of hawser-broker"
}

// refusedFlags adds the flag of a command that does nothing with PostgreSQL, so that it can name what does.
func (d *database) refusedFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.url, "store-url", "", "connection string of PostgreSQL: the command then names the tool of the database")
}

func (d *database) options() postgres.Options {
	return postgres.Options{URL: d.url, PasswordFile: d.passwordFile}
}

// ownTools returns the error about a task of the database.
func (*database) ownTools(use string) error {
	return hint(errors.New("a store in PostgreSQL is backed up and restored by the tools of the database"), "%s", use)
}

// check checks a store in PostgreSQL.
func (d *database) check(cmd *cobra.Command, env Env, dir string) error {
	if dir != "" {
		return usageOf(cmd, errors.New("--data-dir and --store-url exclude each other: a store is in a directory, or in a database"))
	}
	s, err := postgres.OpenSnapshot(cmd.Context(), d.options())
	if err != nil {
		return err
	}
	c, err := s.Check(cmd.Context())
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	return printf(env.Stdout, "the store in PostgreSQL is sound: %s, up to revision %d\n", contentText(c), s.Head().Revision)
}

// contentText returns a text with the size of a store.
func contentText(c storecopy.Content) string {
	return fmt.Sprintf("%d works of %d clusters, %d deleted ones, %d values in %d bytes", c.Live, c.Clusters, c.Deleted, c.Values, c.Bytes)
}

func newStoreMigrate(env Env) *cobra.Command {
	var dir, to string
	var db database
	cmd := &cobra.Command{
		Use:   "migrate --to (postgres | pebble) --data-dir DIR --store-url URL",
		Short: "Move the store of a stopped broker to PostgreSQL, or back",
		Long: `Move the store of a stopped broker to PostgreSQL, or back.

Stop all brokers of the store first. The copy has the same store id, revisions and
cursors, so no agent and no source starts from the beginning. The target must be empty.
The source is not changed: keep it until all is well, and start no broker with it.

A migration that was interrupted continues where it was: run the same command again.
At the end the command reads the target, and compares a digest of all values. Until
then no broker starts with the target.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, f := range [][2]string{
				{"to", "name the engine of the target, postgres or pebble"}, {"data-dir", "name the directory of the embedded store"},
				{"store-url", "name the database, as postgres://hawser@db.example.com/hawser"},
			} {
				if err := given(cmd, f[0], f[1]); err != nil {
					return err
				}
			}
			switch to {
			case "postgres":
				return moveStore(cmd.Context(), env.Stdout,
					func() (*pebble.Source, error) { return pebble.OpenSource(cmd.Context(), dir) },
					func() (*postgres.Target, error) { return postgres.OpenTarget(cmd.Context(), db.options()) },
					"start the brokers with --store-engine=postgres, and keep "+dir+" until all is well")
			case "pebble":
				return moveStore(cmd.Context(), env.Stdout,
					func() (*postgres.Source, error) { return postgres.OpenSource(cmd.Context(), db.options()) },
					func() (*pebble.Target, error) { return pebble.OpenTarget(dir) },
					"start one broker with --data-dir "+dir+", and keep the database until all is well")
			}
			return usageOf(cmd, fmt.Errorf("--to %s is no engine: use postgres or pebble", to))
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "engine of the target: postgres or pebble (required)")
	cmd.Flags().StringVar(&dir, "data-dir", "", "directory of the embedded store (required)")
	db.flags(cmd)
	cmd.Flags().Lookup("store-url").Usage += " (required)"
	return cmd
}

// closedSource and closedTarget are the ends of a migration, which the caller must close.
type (
	closedSource interface {
		storecopy.Source
		io.Closer
	}
	closedTarget interface {
		storecopy.Target
		io.Closer
	}
)

// moveStore migrates a store, and prints its content and the next step.
func moveStore[S closedSource, T closedTarget](ctx context.Context, w io.Writer, source func() (S, error), target func() (T, error), next string) (err error) {
	from, err := source()
	if err != nil {
		return storeHint(err, "stop the broker first")
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := target()
	if err != nil {
		return storeHint(err, "stop the broker first")
	}
	c, err := storecopy.Copy(ctx, from, to)
	if err = errors.Join(err, to.Close()); err != nil {
		return storeHint(err, "")
	}
	return printf(w, "migrated: %s, up to revision %d; the target has the same digest %x\n%s\n", contentText(c), from.Head().Revision, c.Digest[:8], next)
}
