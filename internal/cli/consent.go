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

// consent is how a command that cannot be undone gets the word of a person.
type consent struct{ yes, dryRun bool }

func (c *consent) add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do what cannot be undone without a question; needed where standard input is no terminal")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "say what would be done, and do nothing")
}

// check refuses, before anything is looked at, what would need an answer that cannot come.
func (c *consent) check(cmd *cobra.Command) error {
	if c.yes || c.dryRun || isTerminal(cmd.InOrStdin()) {
		return nil
	}
	return usageOf(cmd, errors.New("this cannot be undone, and standard input is no terminal: see with --dry-run what it does, and say --yes"))
}

// get asks whether to go on with what a text says, unless that was said.
func (c *consent) get(ctx context.Context, cmd *cobra.Command, env Env, what string) error {
	if c.yes {
		return nil
	}
	if err := printf(env.Stderr, "%s\nGo on? Type yes: ", what); err != nil {
		return err
	}
	answer := make(chan string, 1) // so that the reader ends, whether or not its answer is waited for
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
	return hint(errors.New("nothing was done"), "--yes goes on without a question, --dry-run shows what would be done")
}

// isTerminal tells whether a person may type there. /dev/null counts too: no answer comes from it.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
