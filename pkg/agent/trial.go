package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	admission "github.com/hawser-io/hawser/internal/refusal"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// dryRunName is the suffix of the name of an AppliedManifestWork that exists in dry runs only.
const dryRunName = "rehearsal.hawser.dev"

// try dry-runs the agent's own writes. It does so after the work wrote an admission configuration, at each full
// look, and while the last dry run was refused. It returns when to call it again, and the refusal.
func (h *hindrance) try(ctx context.Context, results []apply.Result) (next time.Duration, refused error) {
	l := &h.lockout
	if !slices.ContainsFunc(results, func(res apply.Result) bool {
		return res.Resolved && res.Presence == conditions.Present && appliedwork.Admission(res.ID())
	}) {
		l.next, l.refused = time.Time{}, nil
		return 0, nil
	}
	if slices.ContainsFunc(results, func(res apply.Result) bool { return res.Resolved && wrote(res) && appliedwork.Admission(res.ID()) }) {
		l.tries, l.next = 0, h.now.Add(trialWaits[0])
	}
	due := !l.next.IsZero() && !h.now.Before(l.next)
	if due || h.full || l.refused != nil {
		l.refused = h.dryRun(ctx)
	}
	if due {
		l.next = time.Time{}
		if l.tries++; l.tries < len(trialWaits) {
			l.next = h.now.Add(trialWaits[l.tries] - trialWaits[l.tries-1])
		}
	}
	if !l.next.IsZero() {
		next = max(time.Millisecond, l.next.Sub(h.now))
	}
	return next, l.refused
}

func wrote(res apply.Result) bool {
	return res.Err == nil && res.Action != apply.Unchanged && res.Action != apply.Reject
}

// dryRun returns the refusal of one of the agent's own writes. Other failures prove nothing about the work and
// are ignored.
func (h *hindrance) dryRun(ctx context.Context) error {
	for _, w := range h.ownWrites() {
		err := h.config.Client.DryRunOwn(ctx, w)
		if _, refused := admission.Of(err); refused {
			return fmt.Errorf("%s %s: %w", w.Verb, w.Ref, err)
		}
	}
	return nil
}

// ownWrites returns the writes of the record and the other writes of the process.
func (h *hindrance) ownWrites() []kubeclient.Write {
	writes := slices.Clone(h.config.OwnWrites)
	if h.record == nil {
		return writes
	}
	at := appliedwork.Ref(h.key)
	recreated := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": appliedwork.Resource.GroupVersion().String(), "kind": "AppliedManifestWork",
		"metadata": map[string]any{"name": h.config.HubHash + "-" + dryRunName},
		"spec":     map[string]any{"hubHash": h.config.HubHash, "agentID": h.config.AgentID, "manifestWorkName": dryRunName},
	}}
	return append(writes,
		kubeclient.Write{Verb: kubeclient.Patch, Ref: at, Body: []byte(`{"metadata":{"annotations":{"` + dryRunName + `":"1"}}}`)},
		kubeclient.Write{Verb: kubeclient.Patch, Ref: at, Body: []byte(`{"status":{}}`), Subresource: "status"},
		kubeclient.Write{Verb: kubeclient.Create, Ref: appliedwork.Ref(recreated.GetName()), Object: recreated},
		kubeclient.Write{Verb: kubeclient.Delete, Ref: at},
	)
}
