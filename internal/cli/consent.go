package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// consent asks a person to confirm an irreversible command.
type consent struct{ yes, dryRun bool }

func (c *consent) add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask before an action that cannot be undone; required if standard input is no terminal")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "print what would be done, and do nothing")
}

// check returns an error early if a required answer is impossible.
func (c *consent) check(cmd *cobra.Command) error {
	if c.yes || c.dryRun || isTerminal(cmd.InOrStdin()) {
		return nil
	}
	return usageOf(cmd, errors.New("this cannot be undone, and standard input is no terminal: check with --dry-run, and then use --yes"))
}

// get asks for confirmation of the action in what, unless --yes is set.
func (c *consent) get(ctx context.Context, cmd *cobra.Command, env Env, what string) error {
	if c.yes {
		return nil
	}
	if err := printf(env.Stderr, "%s\nGo on? Type yes: ", what); err != nil {
		return err
	}
	answer := make(chan string, 1) // the goroutine ends even if its answer is not received
	go func() {
		line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		if err != nil {
			line = ""
		}
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "yes" || a == "y" {
			return nil
		}
	case <-ctx.Done():
	}
	return hint(errors.New("nothing was done"), "--yes continues without asking, --dry-run shows what would be done")
}

// isTerminal reports whether in is a character device, on which a person may type. /dev/null counts too,
// although it gives no answer.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
