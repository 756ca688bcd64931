package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/broker/store/storecopy"
	"github.com/hawser-io/hawser/internal/cmdline"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// backupTimeout bounds a backup that a broker sends, because stores are large.
const backupTimeout = time.Hour

func newStore(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "store",
		Short: "Check a broker's store, back it up, restore it, move it to PostgreSQL and back",
		Long: `Check a broker's store, back it up, restore it, move it to PostgreSQL and back.

  hawser store backup  --broker broker.example:8090 --to backup    # while the broker runs
  hawser store backup  --data-dir /var/lib/hawser-broker --to backup
  hawser store backup  --broker broker.example:8090 --into backups --keep 7
  hawser store check   --data-dir backup
  hawser store migrate --to postgres --data-dir /var/lib/hawser-broker --store-url postgres://hawser@db.example/hawser
  hawser store restore --from backup --data-dir /var/lib/hawser-broker

A directory that a broker has open is not touched: only the broker itself can back it
up. The store is the directory in --data-dir of hawser-broker. A backup is a store too.

A store in PostgreSQL is checked and migrated here. Its backups are the task of the
database: pg_dump, or a base backup with the archived WAL.`,
		PersistentPreRun: func(*cobra.Command, []string) { cmdline.KeepPrivate() },
	}, newStoreCheck(env), newStoreBackup(env), newStoreRestore(env), newStoreMigrate(env))
}

func newStoreCheck(env Env) *cobra.Command {
	var dir string
	var db database
	cmd := &cobra.Command{
		Use:   "check (--data-dir DIR | --store-url URL)",
		Short: "Read all of a store, or of a backup, and report damage",
		Long: `Read everything in a store, or in a backup, and report damage.

It verifies the checksum of every value, and compares the indexes with the records. It
changes nothing. The exit status is 0 if nothing is damaged.

With --store-url it reads a store in PostgreSQL, as of one moment, while brokers use it.
It ends at the first damaged value. Indexes and pages are the task of the database: see
pg_amcheck and data checksums.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if db.url != "" {
				return db.check(cmd, env, dir)
			}
			if err := given(cmd, "data-dir", "name the directory of the store, or of a backup"); err != nil {
				return err
			}
			r, err := pebble.Check(cmd.Context(), dir)
			if err != nil {
				return storeHint(err, "stop the broker first, or check a backup that it makes: hawser store backup --broker HOST:PORT --to DIR")
			}
			return printReport(env.Stdout, r)
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "directory of the store, or of a backup (required without --store-url)")
	db.flags(cmd)
	return cmd
}

func newStoreBackup(env Env) *cobra.Command {
	r := remote{env: env}
	var dir, to, into string
	var db database
	keep := 7
	cmd := &cobra.Command{
		Use:   "backup (--to DIR | --into DIR)",
		Short: "Copy a store, of a running broker or of a stopped one",
		Long: `Copy a store, of a running broker or of a stopped one.

A running broker sends its store over its port, which requires an operator's certificate;
the broker keeps working. With --data-dir the store of a stopped broker is read from disk.
The copy is checked. When the command succeeds, all data is on disk in DIR, which must be
empty or missing before. A reader of DIR can read every work: protect it like a Secret.

With --into the copy goes into a new directory in DIR, named by the time:
backup-20261123T090000Z. If the clock went back, the name is that of the newest one plus
one second. When the copy is on disk, only the newest --keep of these directories stay.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case db.url != "":
				return db.ownTools("back it up with pg_dump, or with base backups and archived WAL")
			case into != "" && to != "":
				return usageOf(cmd, errors.New("--to and --into exclude each other: one names the backup, the other a directory of backups"))
			case into != "" && keep < 1:
				return usageOf(cmd, errors.New("--keep is less than 1: the backup itself stays"))
			case into != "":
				name, err := nextName(into, env.Now())
				if err != nil {
					return err
				}
				to = filepath.Join(into, name)
			}
			if err := given(cmd, "to", "name an empty directory for the backup, or with --into one for several"); err != nil {
				return err
			}
			offline := cmd.Flags().Changed("data-dir")
			if offline && cmd.Flags().Changed("broker") {
				return usageOf(cmd, errors.New("--data-dir and --broker exclude each other: the store is read from the disk, or sent by the broker"))
			}
			if offline {
				report, err := pebble.Clone(cmd.Context(), dir, to)
				err = printCopy(env.Stdout, report, err, "the broker is running: let it make the backup, with hawser store backup --broker HOST:PORT --to DIR, or stop it first")
				return pruned(env.Stdout, err, into, keep)
			}
			report, err := receiveBackup(cmd, &r, to)
			err = printCopy(env.Stdout, report, err, "another program writes there: choose another directory")
			return pruned(env.Stdout, err, into, keep)
		},
	}
	r.flags(cmd)
	r.timeout = backupTimeout
	timeout := cmd.Flags().Lookup("timeout")
	timeout.DefValue, timeout.Usage = backupTimeout.String(), "timeout of the whole transfer from the broker"
	cmd.Flags().StringVar(&dir, "data-dir", "", "directory of the store of a stopped broker, instead of --broker")
	cmd.Flags().StringVar(&to, "to", "", "directory for the backup, empty or missing (required without --into)")
	cmd.Flags().StringVar(&into, "into", "", "directory in which the backup gets a new directory named by the time")
	cmd.Flags().IntVar(&keep, "keep", keep, "number of backups to keep in --into, at least 1")
	db.refusedFlags(cmd)
	return cmd
}

// pruned removes old backups of the series of a new backup, and prints them.
func pruned(w io.Writer, err error, into string, keep int) error {
	if err != nil || into == "" {
		return err
	}
	removed, err := prune(into, keep)
	for _, path := range removed {
		err = errors.Join(err, printf(w, "%s is removed: the newest %d stay\n", path, keep))
	}
	return err
}

func newStoreRestore(env Env) *cobra.Command {
	var from, latest, dir string
	var aside bool
	var db database
	cmd := &cobra.Command{
		Use:   "restore (--from DIR | --latest-in DIR) --data-dir DIR",
		Short: "Make a broker's store from a backup",
		Long: `Make a broker's store from a backup.

The backup is checked before, and the store after. The directory of the store must be
empty or not there: move what is in it away, and keep it until all is well. When the
broker starts, sources and agents notice by themselves that it lost what came after the
backup, and send it again.

With --move-aside the command moves the former store itself, into a directory in that of
the store, such as aside-20261123T090000Z. It needs disk space for both.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if db.url != "" {
				return db.ownTools("restore it with pg_restore or to a point in time, while no broker runs; to move the store of a directory there, use hawser store migrate")
			}
			if from != "" && latest != "" {
				return usageOf(cmd, errors.New("--from and --latest-in exclude each other"))
			}
			if latest != "" {
				if from, err = latestOf(latest); err != nil {
					return err
				}
			}
			if err := given(cmd, "from", "name the directory of the backup, or with --latest-in one with several"); err != nil {
				return err
			}
			if err := given(cmd, "data-dir", "name the directory of the broker's store"); err != nil {
				return err
			}
			if aside {
				if err := moveAside(env, from, dir); err != nil {
					return err
				}
			}
			report, err := pebble.Clone(cmd.Context(), from, dir)
			return printCopy(env.Stdout, report, err, "stop the broker first")
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "directory of the backup (required without --latest-in)")
	cmd.Flags().StringVar(&latest, "latest-in", "", "directory of hawser store backup --into, of which the newest backup is restored")
	cmd.Flags().StringVar(&dir, "data-dir", "", "directory of the broker's store; empty or missing, unless --move-aside moves its content (required)")
	cmd.Flags().BoolVar(&aside, "move-aside", false, "move the former store into a directory in --data-dir first")
	db.refusedFlags(cmd)
	return cmd
}

// moveAside empties the directory for a restore, after it has checked that the backup is one.
func moveAside(env Env, from, dir string) error {
	if _, err := os.Stat(from); err != nil {
		return storeHint(err, "")
	}
	to, err := setAside(dir, env.Now())
	if err == nil && to != "" {
		err = printf(env.Stdout, "%s has the former store: delete it when all is well\n", to)
	}
	return err
}

// given returns an error if a required flag is not set.
func given(cmd *cobra.Command, flag, what string) error {
	if f := cmd.Flags().Lookup(flag); f.Value.String() == "" {
		return usageOf(cmd, fmt.Errorf("--%s is not set: %s", flag, what))
	}
	return nil
}

// receiveBackup receives the broker's store.
func receiveBackup(cmd *cobra.Command, r *remote, to string) (report *pebble.Report, err error) {
	var broken, local error // broken is an error of the transfer, local one of this machine
	err = r.call(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient) error {
		s, err := c.Backup(ctx, &hawserv1.BackupRequest{})
		if err != nil {
			return err
		}
		report, local = pebble.Receive(ctx, to, func() (string, []byte, error) {
			m, err := s.Recv()
			if err != nil && !errors.Is(err, io.EOF) {
				broken = err
			}
			return m.GetPath(), m.GetData(), err
		})
		return broken
	})
	if broken == nil {
		err = errors.Join(err, local)
	}
	return report, err
}

// printCopy prints the result of a copy, or adds the remedy to its error.
func printCopy(w io.Writer, r *pebble.Report, err error, inUse string) error {
	if err != nil {
		return storeHint(err, inUse)
	}
	return printf(w, "%s holds %s, up to revision %d\n", r.Dir, amount(r), r.Revision)
}

// storeHint adds the remedy to an error of a store's files.
func storeHint(err error, inUse string) error {
	var damaged *pebble.DamagedError
	switch {
	case errors.Is(err, pebble.ErrInUse):
		return hint(err, "%s", inUse)
	case errors.Is(err, pebble.ErrNotEmpty), errors.Is(err, storecopy.ErrNotEmpty):
		return hint(err, "choose another target, or move away what is there and keep it until all is well")
	case errors.Is(err, pebble.ErrIncomplete), errors.Is(err, storecopy.ErrOther):
		return hint(err, "empty the target and make the copy again")
	case errors.Is(err, pebble.ErrNoStore), errors.Is(err, os.ErrNotExist):
		return hint(err, "give the directory that --data-dir of hawser-broker names, or that of a backup")
	case errors.As(err, &damaged):
		return hint(err, "see everything that is damaged with: hawser store check --data-dir %s", damaged.Report.Dir)
	}
	return err
}

// printReport prints the result of a check.
func printReport(w io.Writer, r *pebble.Report) error {
	for i := range r.Damage {
		if err := printf(w, "damaged: %s: %s\n", r.Damage[i].Key, r.Damage[i].What); err != nil {
			return err
		}
	}
	if more := r.Damaged - len(r.Damage); more > 0 {
		if err := printf(w, "and %d more\n", more); err != nil {
			return err
		}
	}
	if err := r.Err(); err != nil {
		return hint(fmt.Errorf("%s: %d of %d values are damaged", r.Dir, r.Damaged, r.Values),
			"restore a backup: hawser store restore --from BACKUP --data-dir DIR; keep this directory to examine the disk")
	}
	if err := printf(w, "%s is sound: %s, up to revision %d\n", r.Dir, amount(r), r.Revision); err != nil || r.Closed {
		return err
	}
	return printf(w, "its broker did not shut down cleanly: the broker or its machine may have been killed\n")
}

// amount returns a text with the size of a store.
func amount(r *pebble.Report) string {
	live, deleted := 0, 0
	for i := range r.Clusters {
		live += r.Clusters[i].Live
		deleted += r.Clusters[i].Tombstones + r.Clusters[i].ConfirmedTombstones
	}
	return fmt.Sprintf("%d works of %d clusters, %d deleted ones, %d values in %d bytes", live, len(r.Clusters), deleted, r.Values, r.Bytes)
}
