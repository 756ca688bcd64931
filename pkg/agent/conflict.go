package agent

import (
	"time"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// A field conflict of a server-side apply is a state, not a failure: somebody
// else manages a field and wants another value there. It ends when the manifest
// drops the field, which is a new spec, or when the other lets go, which is a
// change of the object. That may be a change of nothing but who manages what: so
// objects with a conflict are watched exactly, and in case a watch cannot tell,
// the apply is tried again after a random time between one and two of these.
const conflictRetry = time.Minute

// conflictWait is when to try again what met a field conflict, 0 if nothing did.
func conflictWait(results []apply.Result, random func() float64) time.Duration {
	for _, res := range results {
		if kubeclient.IsFieldConflict(res.Err) {
			return conflictRetry + time.Duration(random()*float64(conflictRetry))
		}
	}
	return 0
}
