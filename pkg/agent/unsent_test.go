package agent

import (
	"errors"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// A work whose requests are queued reports nothing. If the cluster gives no answers, it reports after a while
// that it takes long.
func TestUnsent(t *testing.T) {
	now := time.Now()
	waits := func(fails bool) []apply.Result {
		return []apply.Result{{}, {Err: &kubeclient.SlowError{What: "ropes.example.com", Fails: fails}}}
	}
	late := func(u *unsent) bool {
		s := u.report(&desired.Work{}, workv1.ManifestWorkStatus{}, now)
		return len(s.Conditions) == 1 && s.Conditions[0].Type == "ReconcileSlow"
	}
	var u unsent
	u.note(waits(false), now)
	now = now.Add(veryslowAfter)
	if u.note(waits(false), now); !u.before || late(&u) {
		t.Error("a queued request is reported")
	}
	if u.note(waits(true), now); !late(&u) {
		t.Error("the cluster gives no answers, and that is not reported")
	}
	if u.note([]apply.Result{{Err: errors.New("boom")}}, now); !u.since.IsZero() || !u.before || late(&u) {
		t.Errorf("it waits for nothing any more: %+v", u)
	}
	u.note(waits(true), now)
	if u.before || late(&u) {
		t.Error("it has just begun to wait")
	}
}
