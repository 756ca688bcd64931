package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// lookEvery is the poll interval of --watch.
const lookEvery = 2 * time.Second

// listing is a verb that shows the messages of a stream.
type listing[T any] struct {
	env     Env
	remote  remote
	kind    string
	columns []column[T]
	// meta returns the metadata of an item's object, path its name with the cluster's name. Items with the same id,
	// or path if there is none, are the same.
	meta     func(*T) map[string]any
	path, id func(*T) string
	// The broker sorts by group; sort orders the items of a group, if it is set.
	group func(*T) string
	order func(x, y *T) int
	// keep reports whether to show an item; a nil keep shows all.
	keep func(*T) bool
	// sum counts a shown item. total returns the summary line below a table; nil for none.
	sum   func(*T)
	total func() string

	output string
	watch  bool
}

// column is one column of a table.
type column[T any] struct {
	header string
	cell   func(*T) string
	// field is the field of the object with the same meaning: json and yaml use the word of the table.
	field string
	// wide: the column is shown only with --output wide.
	wide bool
	// sparse: the column is shown only if one of its cells has a value.
	sparse bool
}

// pages requests the page behind a token.
type pages[T any] func(ctx context.Context, c hawserv1.AdminServiceClient, token string) (grpc.ServerStreamingClient[T], error)

func (l *listing[T]) flags(cmd *cobra.Command) {
	l.remote.flags(cmd)
	cmd.Flags().StringVarP(&l.output, "output", "o", asTable, strings.Join(outputs, ", "))
	cmd.Flags().BoolVarP(&l.watch, "watch", "w", false, "show what changes too, until Ctrl-C")
	complete(cmd, "output", fixed(outputs...))
}

// run lists, and with --watch continues. named is the requested name, "" for none; it must exist.
func (l *listing[T]) run(cmd *cobra.Command, list pages[T], named string) error {
	if err := oneOf(cmd, "output", l.output, outputs); err != nil {
		return err
	}
	return l.remote.connected(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient) error {
		if err := l.known(ctx, c, cmd); err != nil {
			return err
		}
		p := newPrinter(l.env.Stdout, l.output, l.header(), l.sparse(), l.watch || named != "")
		look := func(show func(*T) error) error {
			return paged(ctx, l.remote.timeout, func(ctx context.Context, token string) (grpc.ServerStreamingClient[T], error) {
				return list(ctx, c, token)
			}, l.only(show))
		}
		if l.watch {
			return l.follow(ctx, look, p)
		}
		shown := 0
		err := l.sorted(look, func(m *T) error {
			shown++
			if l.sum != nil {
				l.sum(m)
			}
			return p.show(l.thing(m))
		})
		switch {
		case err != nil:
			return err
		case named != "" && shown == 0:
			kind := strings.ToLower(l.kind)
			return hint(fmt.Errorf("there is no %s %s", kind, named), "list all with: hawser get %ss", kind)
		}
		if err := p.end(); err != nil || l.total == nil || shown == 0 || named != "" || l.output != asTable && l.output != asWide {
			return err
		}
		return printf(l.env.Stdout, "\n%s\n", l.total())
	})
}

// known returns an error if the list is limited to an unknown cluster or source. With --watch it may appear
// later.
func (l *listing[T]) known(ctx context.Context, c hawserv1.AdminServiceClient, cmd *cobra.Command) error {
	if l.watch {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.remote.timeout)
	defer cancel()
	for flag, check := range map[string]func(context.Context, hawserv1.AdminServiceClient, string) error{"cluster": knownCluster, "source": knownSource} {
		if f := cmd.Flags().Lookup(flag); f != nil && f.Value.String() != "" {
			if err := check(ctx, c, f.Value.String()); err != nil {
				return err
			}
		}
	}
	return nil
}

// only calls show for items that keep does not exclude.
func (l *listing[T]) only(show func(*T) error) func(*T) error {
	if l.keep == nil {
		return show
	}
	return func(m *T) error {
		if !l.keep(m) {
			return nil
		}
		return show(m)
	}
}

// seen is an item that a poll found, by id.
type seen struct {
	path string
	sum  [sha256.Size]byte
}

// follow shows all items, and then all changes, until ctx ends.
func (l *listing[T]) follow(ctx context.Context, look func(func(*T) error) error, p printer) error {
	tick := time.NewTicker(cmp.Or(l.env.LookEvery, lookEvery))
	defer tick.Stop()
	var before map[string]seen
	for {
		now, err := l.changes(look, p, before)
		if ctx.Err() != nil {
			return nil // the user ended the watch
		}
		if err == nil {
			err = l.printGone(before, now)
		}
		if err != nil {
			return err
		}
		before = now
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// changes shows the changed items, and returns the current ones.
func (l *listing[T]) changes(look func(func(*T) error) error, p printer, before map[string]seen) (now map[string]seen, err error) {
	now = map[string]seen{}
	err = l.sorted(look, func(m *T) error {
		t := l.thing(m)
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(t.message)
		if err != nil {
			return err
		}
		for _, field := range slices.Sorted(maps.Keys(t.words)) { // a word may change with something else, such as health with the cluster
			b = append(b, t.words[field]...)
		}
		id, is := l.idOf(m), seen{path: t.path, sum: sha256.Sum256(b)}
		now[id] = is
		if before[id] == is {
			return nil
		}
		return p.show(t)
	})
	if err != nil || before != nil && len(now) == 0 {
		return now, err
	}
	return now, p.end()
}

// printGone prints items that are gone. It does so only for people; a program detects the absence itself.
func (l *listing[T]) printGone(before, now map[string]seen) error {
	if l.output != asTable && l.output != asWide {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if _, ok := now[id]; ok {
			continue
		}
		if err := printf(l.env.Stdout, "%s/%s is no longer listed\n", strings.ToLower(l.kind), before[id].path); err != nil {
			return err
		}
	}
	return nil
}

func (l *listing[T]) idOf(m *T) string {
	if l.id != nil {
		return l.id(m)
	}
	return l.path(m)
}

func (l *listing[T]) header() (header []string) {
	for _, c := range l.shown() {
		header = append(header, c.header)
	}
	return header
}

// sparse returns the columns that are omitted if they are empty.
func (l *listing[T]) sparse() (columns []int) {
	for i, c := range l.shown() {
		if c.sparse {
			columns = append(columns, i)
		}
	}
	return columns
}

// shown returns the columns to show.
func (l *listing[T]) shown() []column[T] {
	return slices.DeleteFunc(slices.Clone(l.columns), func(c column[T]) bool { return !l.shows(c) })
}

func (l *listing[T]) shows(c column[T]) bool { return l.output == asWide || !c.wide }

func (l *listing[T]) thing(m *T) thing {
	t := thing{kind: l.kind, meta: l.meta(m), path: l.path(m), message: any(m).(proto.Message), words: map[string]string{}}
	for _, c := range l.columns {
		cell := c.cell(m)
		if l.shows(c) {
			t.row = append(t.row, cell)
		}
		if c.field != "" {
			t.words[c.field] = cell
		}
	}
	return t
}

// sorted shows the items of each, group by group, in order.
func (l *listing[T]) sorted(each func(func(*T) error) error, show func(*T) error) error {
	if l.order == nil {
		return each(show)
	}
	var group []*T
	flush := func() error {
		slices.SortStableFunc(group, l.order)
		for _, m := range group {
			if err := show(m); err != nil {
				return err
			}
		}
		group = group[:0]
		return nil
	}
	err := each(func(m *T) error {
		if len(group) > 0 && l.group(group[0]) != l.group(m) {
			if err := flush(); err != nil {
				return err
			}
		}
		group = append(group, m)
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// oneOf returns an error if a flag's value is not one of the words; empty is valid.
func oneOf(cmd *cobra.Command, flag, value string, words []string) error {
	if value == "" || slices.Contains(words, value) {
		return nil
	}
	return usageOf(cmd, fmt.Errorf("--%s %s: use one of %s", flag, value, strings.Join(words, ", ")))
}
