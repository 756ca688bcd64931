package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// isNamed reports whether written, by a person, names the work.
func isNamed(m *hawserv1.ListWorksResponse, written string) bool {
	return m.GetName() == written || m.GetResourceId() == written
}

// workID returns the id of a work on a cluster by its name or id. Of several works with this name, it is the
// one that is not deleted.
func workID(ctx context.Context, c hawserv1.AdminServiceClient, cluster, written string) (string, error) {
	var exact, ids, deleted []string
	err := allWorks(ctx, c, cluster, func(m *hawserv1.ListWorksResponse) error {
		switch {
		case m.GetResourceId() == written:
			exact = append(exact, written)
		case m.GetName() != written:
		case m.GetState() == hawserv1.WorkState_WORK_STATE_DELETED:
			deleted = append(deleted, m.GetResourceId())
		default:
			ids = append(ids, m.GetResourceId())
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	for _, found := range [][]string{exact, ids, deleted} {
		if len(found) == 1 || len(found) > 0 && len(exact) > 0 {
			return found[0], nil
		}
		if len(found) > 1 {
			return "", hint(fmt.Errorf("cluster %s has several works %s: %s", cluster, written, strings.Join(found, ", ")), "name one by its id; hawser get works --cluster %s -o wide shows their sources", cluster)
		}
	}
	return "", hint(fmt.Errorf("cluster %s has no work %s", cluster, written), "hawser get works --cluster %s shows its works", cluster)
}

func allWorks(ctx context.Context, c hawserv1.AdminServiceClient, cluster string, f func(*hawserv1.ListWorksResponse) error) error {
	return paged(ctx, time.Hour, func(ctx context.Context, token string) (grpc.ServerStreamingClient[hawserv1.ListWorksResponse], error) {
		return c.ListWorks(ctx, &hawserv1.ListWorksRequest{Cluster: cluster, PageToken: token})
	}, f)
}

// lookup collects completions of a word on the command line.
type lookup struct {
	client hawserv1.AdminServiceClient
	// prefix is the typed part of the word.
	prefix string
	words  []string
}

// Limits of a completion: a person waits only this long and reads only this many.
const (
	completeWithin = 3 * time.Second
	completeMost   = 500
)

// errEnough ends a lookup.
var errEnough = errors.New("enough")

func (l *lookup) add(name string) error {
	if name != "" && strings.HasPrefix(name, l.prefix) && !slices.Contains(l.words, name) {
		l.words = append(l.words, name)
	}
	if len(l.words) == completeMost {
		return errEnough
	}
	return nil
}

// args completes arguments, or the value of a flag, with data of the broker. look gets the arguments before it.
// Without a broker there are no completions.
func (r *remote) args(look func(ctx context.Context, l *lookup, args []string) error) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		l := &lookup{prefix: prefix}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
		defer cancel()
		cmd.SetContext(ctx)
		r.quiet = true
		err := r.connected(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient) error {
			l.client = c
			return look(ctx, l, args)
		})
		if err != nil && !errors.Is(err, errEnough) {
			cobra.CompDebugln(err.Error(), false)
		}
		return l.words, cobra.ShellCompDirectiveNoFileComp
	}
}

// fixed completes with these words.
func fixed(words ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

func clusterNames(ctx context.Context, l *lookup, args []string) error {
	if len(args) > 0 {
		return nil
	}
	return paged(ctx, completeWithin, func(ctx context.Context, token string) (grpc.ServerStreamingClient[hawserv1.ListClustersResponse], error) {
		return l.client.ListClusters(ctx, &hawserv1.ListClustersRequest{PageToken: token})
	}, func(m *hawserv1.ListClustersResponse) error { return l.add(m.GetCluster()) })
}

func sourceNames(ctx context.Context, l *lookup, _ []string) error {
	return paged(ctx, completeWithin, func(ctx context.Context, token string) (grpc.ServerStreamingClient[hawserv1.ListQuotasResponse], error) {
		return l.client.ListQuotas(ctx, &hawserv1.ListQuotasRequest{PageToken: token})
	}, func(m *hawserv1.ListQuotasResponse) error {
		if m.GetSource() == "" { // sources are first
			return errEnough
		}
		return l.add(m.GetSource())
	})
}

func workNames(ctx context.Context, l *lookup, cluster string) error {
	return allWorks(ctx, l.client, cluster, func(m *hawserv1.ListWorksResponse) error { return l.add(m.GetName()) })
}

// workOfCluster completes CLUSTER WORK.
func workOfCluster(ctx context.Context, l *lookup, args []string) error {
	switch len(args) {
	case 0:
		return clusterNames(ctx, l, args)
	case 1:
		return workNames(ctx, l, args[0])
	}
	return nil
}

func deniedNames(ctx context.Context, l *lookup, _ []string) error {
	s, err := l.client.ListDenials(ctx, &hawserv1.ListDenialsRequest{})
	return received(s, err, func(m *hawserv1.ListDenialsResponse) error { return l.add(m.GetSubject()) })
}

// knownMost is the maximum number of existing names that an error lists.
const knownMost = 10

// knownCluster returns an error, which lists existing clusters, if the broker does not know the name.
func knownCluster(ctx context.Context, c hawserv1.AdminServiceClient, name string) error {
	found := false
	err := paged(ctx, time.Hour, func(ctx context.Context, token string) (grpc.ServerStreamingClient[hawserv1.ListClustersResponse], error) {
		return c.ListClusters(ctx, &hawserv1.ListClustersRequest{Cluster: name, PageToken: token})
	}, func(*hawserv1.ListClustersResponse) error { found = true; return nil })
	if err != nil || found {
		return err
	}
	return unknown(ctx, c, "cluster", name, clusterNames)
}

// knownSource is knownCluster for a source.
func knownSource(ctx context.Context, c hawserv1.AdminServiceClient, name string) error {
	l := &lookup{client: c, prefix: name}
	if err := sourceNames(ctx, l, nil); err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if slices.Contains(l.words, name) {
		return nil
	}
	return unknown(ctx, c, "source", name, sourceNames)
}

// unknownError reports a name that the broker does not know.
type unknownError struct{ kind, name string }

func (e *unknownError) Error() string { return "the broker knows no " + e.kind + " " + e.name }

// unknown returns the error for a name that look does not find.
func unknown(ctx context.Context, c hawserv1.AdminServiceClient, kind, name string, look func(context.Context, *lookup, []string) error) error {
	verb := map[string]string{"cluster": "hawser get clusters", "source": "hawser get quotas"}[kind]
	l := &lookup{client: c}
	if err := look(ctx, l, nil); err != nil && !errors.Is(err, errEnough) {
		return err
	}
	slices.Sort(l.words)
	all := strings.Join(l.words[:min(knownMost, len(l.words))], ", ")
	if len(l.words) > knownMost {
		all += " and others"
	}
	return hint(&unknownError{kind, name}, "it knows %s: see %s", cmp.Or(all, "none"), verb)
}
