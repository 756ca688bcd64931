package agent

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// errTooLarge is the API server's error for an object that is too large for etcd.
var errTooLarge = apierrors.NewInternalError(errors.New("etcdserver: request is too large"))

// TestCore_ReportsTooLargeRecord: the condition of the work reports a too large record at once. Other works are
// not blocked.
func TestCore_ReportsTooLargeRecord(t *testing.T) {
	r := newRig(t)
	r.f.Refuse = func(c clustertest.Call) error {
		if c.Write() && c.Ref.Resource == "appliedmanifestworks" && c.Ref.Name == appliedwork.Name(testHubHash, "large") {
			return errTooLarge
		}
		return nil
	}
	r.apply(hubWork("w-1", "large", 1, configMap("a", "1")))
	r.apply(hubWork("w-2", "web", 1, configMap("b", "1")))
	r.wantRefused("w-1", 0, "AppliedManifestFailed", "request is too large")
	r.expectStatus("w-2", workApplied, workAvailable)
	r.f.Refuse = nil
	r.settle(10 * time.Minute)
	r.expectStatus("w-1", workApplied, workAvailable)
}

// TestCore_RetriesTooLargeObjectWithBackoff: a manifest that is too large for the cluster fails like an invalid
// one. It is retried with increasing waits, not every ten seconds.
func TestCore_RetriesTooLargeObjectWithBackoff(t *testing.T) {
	r := newRig(t)
	tries := 0
	r.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "create" && c.Ref.Name == "a" {
			tries++
			return errTooLarge
		}
		return nil
	}
	r.apply(hubWork("w-1", "large", 1, configMap("a", "1"), configMap("b", "1")))
	r.wantRefused("w-1", 0, "AppliedManifestFailed", "request is too large")
	if r.configMap("b") == nil {
		t.Error("b is not made")
	}
	r.settle(30 * time.Minute)
	if tries > 30 {
		t.Errorf("tried %d times in 30 minutes", tries)
	}
}
