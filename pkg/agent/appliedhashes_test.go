package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// completed is a Deployment to which the server adds what the manifest lacks, so
// that the two differ for ever.
const completed = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},
	"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}}`

func (r *rig) written() (calls []string) {
	for _, c := range r.requests() {
		if !strings.HasPrefix(c, "get ") {
			calls = append(calls, c)
		}
	}
	return calls
}

// A later process writes only differences: objects that its predecessor left as wanted are not written, even if
// the server completed them. Objects that another client changed in the meantime are.
func TestCore_RestartWritesOnlyDifferences(t *testing.T) {
	r := newJournaledRig(t)
	w := hubWork("w-1", "web", 1, completed, configMap("web", "1"))
	r.apply(w)
	r.settle(time.Minute) // the hashes are saved periodically
	if len(r.journal.left[r.core.keyOf("web")]) != 2 {
		t.Fatalf("on the journal: %q", r.journal.left)
	}
	r.restart()
	r.requests()
	r.settle(time.Minute)
	if got := r.written(); got != nil {
		t.Errorf("written after a restart: %q", got)
	}

	r.start()
	r.f.Edit(r.ref("Deployment", "web"), func(o *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(o.Object, int64(7), "spec", "replicas"); err != nil {
			t.Fatal(err)
		}
	})
	r.requests()
	r.subscribe(accepted)
	r.settle(time.Minute)
	if got := r.written(); !slices.Equal(got, []string{"update deployments.apps default/web"}) {
		t.Errorf("written after a restart, and a change meanwhile: %q", got)
	}

	// A changed manifest is written, and so is an unchanged one if the hashes are lost.
	r.restart()
	r.requests()
	r.apply(hubWork("w-1", "web", 2, strings.Replace(completed, `"image":"i"`, `"image":"j"`, 1), configMap("web", "1")))
	if got := r.written(); !slices.Contains(got, "update deployments.apps default/web") {
		t.Errorf("written for a new manifest: %q", got)
	}
	r.settle(time.Minute)
	r.journal.left = nil
	r.restart()
	r.requests()
	r.settle(time.Minute)
	if got := r.written(); !slices.Equal(got, []string{"update deployments.apps default/web"}) {
		t.Errorf("written without memory: %q", got)
	}

	r.delete(hubWork("w-1", "web", 2))
	r.settle(time.Minute)
	if len(r.journal.left) != 0 {
		t.Errorf("left on the journal: %q", r.journal.left)
	}
}

func TestCore_HowObjectsWereLeftIsSavedAgain(t *testing.T) {
	r := newJournaledRig(t)
	full := true
	r.journal.fail = func(op, _ string) error {
		if full && (op == "left" || op == "renew") {
			return errors.New("no room")
		}
		return nil
	}
	r.apply(hubWork("w-1", "web", 1, completed))
	r.settle(10 * time.Minute)
	if len(r.journal.left) != 0 {
		t.Fatal("saved although it failed")
	}
	full = false
	r.settle(10 * time.Minute)
	if len(r.journal.left) != 1 {
		t.Errorf("on the journal: %q", r.journal.left)
	}
	n := len(r.journal.did)
	r.settle(10 * time.Minute)
	for _, did := range r.journal.did[n:] {
		if did == "left " {
			t.Error("saved again without a change")
		}
	}
}

// Restored entries of works that are no longer wanted are dropped.
func TestWritten_Restore(t *testing.T) {
	var w appliedHashes
	w.restore(map[string]map[string]string{"k": {"a": "x"}, "gone": {"a": "x"}}, func(key string) bool { return key == "k" })
	if len(w.objects) != 1 || w.objects["k"]["a"] != "x" {
		t.Fatalf("got %+v", w)
	}
	r := newJournaledRig(t)
	r.core.persister.written = w
	if _, k := r.core.persister.writtenBefore("k", ref{Name: "a"}); k.UID != "" {
		t.Errorf("a text that is none: %v", k)
	}
}
