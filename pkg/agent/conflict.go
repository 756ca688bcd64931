package agent

import (
	"time"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// conflictRetry is the base of the retry of a server-side apply that met a field conflict: a random time
// between one and two of these. A field conflict is a state and no failure: another manager owns a field and
// wants another value there. It ends when a new spec drops the field, or when the other manager releases it.
// The release may change only managedFields. Therefore objects with a conflict are tracked by exact signature;
// the retry covers objects whose watch cannot show it.
const conflictRetry = time.Minute

// conflictWait returns when to retry after a field conflict, 0 if there is none.
func conflictWait(results []apply.Result, random func() float64) time.Duration {
	for _, res := range results {
		if kubeclient.IsFieldConflict(res.Err) {
			return conflictRetry + time.Duration(random()*float64(conflictRetry))
		}
	}
	return 0
}
