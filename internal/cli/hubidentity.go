package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// API rate limits of this verb, bounded by the time that a person waits.
const moveQPS, moveBurst = 50, 100

func newHubIdentity(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "hub-identity",
		Short: "Show and transfer the hub identities of a managed cluster",
	}, newHubIdentityTransfer(env))
}

func newHubIdentityTransfer(env Env) *cobra.Command {
	var kubeconfigFile, namespace, broker string
	cmd := &cobra.Command{
		Use:   "transfer [FROM TO]",
		Short: "Transfer the objects on a managed cluster from one hub to another",
		Long: `Transfer the objects on a managed cluster from one hub to another, with the rights
of the owner of that cluster. Without arguments it shows the hub identities there.

The objects of a work on a cluster belong to the hub of the work. A hub is identified by
its identity: --hub-identity of the agent or, if that is not set, the address of the
broker. An agent with another identity belongs to another hub. An agent with the identity
of another hub is rejected.

FROM and TO are such identities. Afterwards all objects of FROM belong to TO. Of works
that both have, TO keeps its own; the others become works of TO unchanged. No object is
deleted or created again. Stop the agent of FROM before. FROM may also be the hash of an
identity that is no longer known.

If FROM and TO are the same, the identity moves from its broker to the broker whose agent
was rejected.`,
		Args: cobra.MatchAll(cobra.MaximumNArgs(2), func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				return errors.New("name both hubs, FROM and TO, or none to list the hubs")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if namespace == "" {
				return usageOf(cmd, errors.New("--namespace is empty: name the namespace of the agent"))
			}
			cfg, err := kubeconfig.Load(kubeconfigFile, "kubeconfig")
			if err != nil {
				return err
			}
			kube, err := kubeclient.NewKube(kubeclient.KubeConfig{REST: cfg, QPS: moveQPS, Burst: moveBurst})
			if err != nil {
				return err
			}
			hubs := hubidentity.Registry{Objects: kube, Records: hubidentity.RecordsOf(drift.Metadata(kube.Metadata())), Namespace: namespace, Now: env.Now}
			if len(args) == 0 {
				return showHubs(cmd.Context(), env, hubs)
			}
			m := hubidentity.Migration{Registry: hubs, Abandon: kube.Abandon, Printf: func(format string, args ...any) error { return printf(env.Stdout, format, args...) }}
			return move(cmd.Context(), m, args[0], args[1], broker)
		},
	}
	f := cmd.Flags()
	f.StringVar(&kubeconfigFile, "kubeconfig", "", "kubeconfig of the managed cluster; empty means the file in KUBECONFIG")
	f.StringVarP(&namespace, "namespace", "n", "hawser", "namespace of the agents on that cluster")
	f.StringVar(&broker, "to-broker", "", "address of the broker, if FROM and TO are the same and several were rejected")
	return cmd
}

// move transfers the objects of FROM, unless an agent of FROM is running.
func move(ctx context.Context, m hubidentity.Migration, from, to, broker string) error {
	if to == "" || hubidentity.IsHash(to) {
		return hint(fmt.Errorf("TO %q is no identity but a hash", to), "name the hub that is to have the objects as its agent does, with --hub-identity")
	}
	if from != to {
		if err := idle(ctx, m.Registry, from); err != nil {
			return err
		}
	}
	err := m.Move(ctx, from, to, broker)
	if errors.Is(err, hubidentity.ErrNothing) {
		return hint(err, "list the hubs with: hawser hub-identity transfer --namespace %s", m.Namespace)
	}
	return err
}

// leases is the resource of Leases.
var leases = schema.GroupVersionResource{Group: coordinationv1.GroupName, Version: "v1", Resource: "leases"}

// idle returns an error while an agent of a hub holds its Lease, because the agent would undo the transfer.
func idle(ctx context.Context, hubs hubidentity.Registry, identity string) error {
	hash := identity
	if !hubidentity.IsHash(identity) {
		hash = appliedwork.HubHash(identity)
	}
	ids, err := hubs.AgentIDs(ctx, hash)
	if err != nil {
		return err
	}
	for _, id := range append(ids, hash) {
		name := hubidentity.LeaseName(hash, id)
		o, err := hubs.Objects.Get(ctx, kubeclient.Ref{GroupVersionResource: leases, Namespace: hubs.Namespace, Name: name})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if holder, err := holderOf(o, hubs.Now()); err != nil || holder != "" {
			return errors.Join(err, hint(fmt.Errorf("an agent of hub %s is active: %s holds the Lease %s/%s", identity, holder, hubs.Namespace, name),
				"stop the agent, or start it with the identity of the other hub first; one that was killed has the Lease for two minutes more"))
		}
	}
	return nil
}

// holderOf returns the current holder of a Lease, "" if there is none.
func holderOf(o *unstructured.Unstructured, now time.Time) (string, error) {
	var l coordinationv1.Lease
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &l); err != nil {
		return "", fmt.Errorf("lease %s: %w", o.GetName(), err)
	}
	s := l.Spec
	if s.HolderIdentity == nil || s.RenewTime == nil || s.LeaseDurationSeconds == nil ||
		now.After(s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds)*time.Second)) {
		return "", nil
	}
	return *s.HolderIdentity, nil
}

// showHubs prints the hub identities on a cluster.
func showHubs(ctx context.Context, env Env, hubs hubidentity.Registry) error {
	book, err := hubs.Claims(ctx)
	if err != nil {
		return err
	}
	tally, err := hubs.Tally(ctx)
	if err != nil {
		return err
	}
	shared, err := hubs.Shared(ctx)
	if err != nil {
		return err
	}
	var rows [][]string
	row := func(state, identity, hash string, t hubidentity.BrokerRef) {
		works := ""
		if hash != "" {
			works = strconv.Itoa(tally[hash])
		}
		rows = append(rows, []string{state, identity, t.Cluster, t.Broker, t.StoreID, works, shared[hash]})
	}
	for _, hash := range slices.Sorted(maps.Keys(book)) {
		c := book[hash]
		row("claimed", c.Identity, hash, c.BrokerRef)
		for _, r := range c.Rejected {
			row("rejected", r.Identity, "", r.BrokerRef)
		}
	}
	unclaimed := book.Unclaimed(tally)
	for _, hash := range slices.Sorted(maps.Keys(unclaimed)) {
		row("not claimed", hash, hash, hubidentity.BrokerRef{})
	}
	return table(env.Stdout, []string{"STATE", "IDENTITY", "CLUSTER", "BROKER", "STORE", "WORKS", "SHARED"}, rows)
}
